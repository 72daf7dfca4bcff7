"""`Checkpoints`: asynchronous Orbax storage of a run's state with the data position it belongs to.

A step is complete once Orbax has renamed it into place with its commit marker and both its items; anything
else is named and passed over. A write that fails in the background is raised by the next `save` or `wait`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from dew.training.compare import differences, refuse_differences
from dew.training.positions import packed_position, position_for
from dew.training.retention import LatestAndBest, ranked
from dew.training.state import TrainState
from dew.training.step_folders import RECORD, STATE, absolute, scan_steps, set_aside

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

    from dew.data.dataset import DataPartition


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; training must not go on as if it had been."""


class DamagedCheckpoint(ValueError):
    """A complete checkpoint whose files cannot be read."""


class Checkpoints:
    """The checkpoints of one run. Storage is opened on first use; reading alone changes nothing in it.

    Args:
        directory: holds one folder per step.
        keep: how many of the latest steps stay, besides the best one.
        local_directory: not supported yet; with `local_every`, where emergency copies would go.
        local_every: not supported yet.

    Raises:
        ValueError: `keep` below 1, or one of the two local options without the other.
        NotImplementedError: both local options.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 2,
        local_directory: str | None = None,
        local_every: int | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1, or a stopped run has nothing to resume from")
        if (local_directory is None) != (local_every is None):
            raise ValueError(
                f"local_directory={local_directory!r} and local_every={local_every!r} go together; give both "
                "or neither"
            )
        if local_directory is not None:
            raise NotImplementedError(
                f"local_directory={local_directory!r}: emergency checkpoints on local disks are not built "
                "yet; "
                "leave local_directory and local_every out"
            )
        self.directory = absolute(os.fspath(directory))
        self.keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._reader: ocp.CheckpointManager | None = None
        self._pending: int | None = None
        self._ranks: dict[int, float | None] = {}

    @property
    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return max(self.steps(), default=None)

    def open(self) -> None:
        """Create the directory and read what it holds; later calls do nothing.

        Raises:
            CheckpointError: that is not possible.
        """
        try:
            self._open()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be kept in {self.directory}: {error}; choose a folder that can be "
                "written to"
            ) from error

    def path(self, step: int) -> str:
        """Where the checkpoint of `step` lies, or will lie."""
        return f"{self.directory}/{step}"

    def steps(self) -> tuple[int, ...]:
        """The complete steps in rising order.

        An incomplete folder with a step's name is named in a warning.
        """
        complete, torn = scan_steps(self.directory)
        for step in torn:
            warnings.warn(f"{self.path(step)} is no complete checkpoint; it is passed over", stacklevel=2)
        return complete

    def save(
        self,
        step: int,
        state: TrainState,
        saved: bytes | None,
        metrics: Mapping[str, float] | None = None,
        *,
        share: DataPartition | None = None,
        higher_is_better: bool = False,
    ) -> None:
        """Schedule the write of `step`; returns once the arrays may be reused.

        Args:
            step: the attempted clock.
            state: what is stored; fields that are None are left out.
            saved: the position of the last consumed batch, or None for data without one.
            metrics: of a validation pass at this step. The best checkpoint follows the first of them.
            share: what the position's reader read; required with a position.
            higher_is_better: how the first metric is compared.

        Raises:
            ValueError: a position without its share.
            CheckpointError: an earlier write failed, this one could not start, or the step is already there
                or lies below the latest.
        """
        if (saved is None) != (share is None):
            raise ValueError(
                "a data position is saved together with the share its reader read; give both or neither"
            )
        import orbax.checkpoint as ocp

        self._raise_failure()
        rank = ranked(metrics, higher_is_better)
        record = {"positions": packed_position(saved, share), "metrics": dict(metrics or {}), "rank": rank}
        self.open()
        manager = self._open()
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(_fields(state)),
            record=ocp.args.JsonSave(record),
        )
        try:
            done = manager.save(step, args=items)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint {step} could not be written to {self.directory}: {error}"
            ) from error
        if not done:
            raise CheckpointError(
                f"checkpoint {step} was not written: {self.directory} already holds step "
                f"{manager.latest_step()}; "
                "resume from it, or give the run a directory of its own"
            )
        self._ranks[step] = rank
        self._pending = step

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return self._manager is not None and self._manager.is_saving_in_progress()

    def wait(self) -> None:
        """Wait for the pending write.

        Raises:
            CheckpointError: it failed.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error
        self._pending = None

    def restore(
        self, template: Any = None, step: int | None = None, *, share: DataPartition | None = None
    ) -> tuple[Any, bytes | None]:
        """Read a checkpoint and the data position for the reader of `share`.

        Args:
            template: a `TrainState`, or a mapping of some of its fields, of arrays or `jax.ShapeDtypeStruct`s
                with shardings; structure, dtypes, shapes and placement are the template's. None returns the
                stored fields as plain dicts and lists of arrays on the default device.
            step: default the latest complete one.
            share: the reader whose position is wanted; None asks for none.

        Raises:
            FileNotFoundError: there is no such complete checkpoint.
            ValueError: tree, shapes or dtypes differ from the template's (the first five differences are
                listed), or the position was saved by readers of other shares.
        """
        step = self._existing(step)
        record = self.record(step)
        if template is None:
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            state = self._read(step, jax.tree.map(lambda leaf: _on(leaf, device), self.stored(step)))
        elif isinstance(template, TrainState):
            refuse_differences(differences(_fields(template), self.stored(step)), self.path(step))
            state = replace(template, **self._read(step, _fields(template)))
        else:
            stored = self.stored(step)
            refuse_differences(
                differences(template, {name: stored.get(name) for name in template}), self.path(step)
            )
            state = self._read(step, template)
        position = None if share is None else position_for(record["positions"], share, self.path(step))
        return state, position

    def stored(self, step: int | None = None) -> dict[str, Any]:
        """Shape and dtype of every stored leaf, nested by field, without reading any.

        Raises:
            DamagedCheckpoint: a file of it is missing or broken.
        """
        step = self._existing(step)
        with self._reads(step):
            metadata: Any = self._reading().item_metadata(step)[STATE]
            return dict(metadata.tree)

    def record(self, step: int | None = None) -> dict[str, Any]:
        """What is stored beside the state: `positions` and the `metrics` of the step."""
        import orbax.checkpoint as ocp

        step = self._existing(step)
        with self._reads(step):
            read = self._reading().restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore()))
            return dict(read[RECORD])

    def _read(self, step: int, template: Any) -> Any:
        import orbax.checkpoint as ocp

        arguments = ocp.args.PyTreeRestore(
            item=template,
            restore_args=ocp.checkpoint_utils.construct_restore_args(template),
            partial_restore=True,
        )
        with self._reads(step):
            return self._reading().restore(step, args=ocp.args.Composite(state=arguments))[STATE]

    @contextmanager
    def _reads(self, step: int) -> Generator[None]:
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError):  # the device's, not the file's
            raise
        except Exception as error:
            earlier = [held for held in scan_steps(self.directory)[0] if held < step]
            way = f"to go on from step {earlier[-1]}, move it away" if earlier else "no earlier step is there"
            cause = str(error).partition("See full")[0].strip().splitlines() or [type(error).__name__]
            raise DamagedCheckpoint(
                f"{self.path(step)} cannot be read: a file of it is missing or broken; {way} "
                f"({cause[0][:200]})"
            ) from error

    def _existing(self, step: int | None) -> int:
        complete, torn = scan_steps(self.directory)
        if step is None and complete:
            return complete[-1]
        if step in complete:
            return step
        which = "checkpoint" if step is None else f"checkpoint {step}"
        have = f"complete: {', '.join(map(str, complete)) or 'none'}"
        broken = f"; incomplete: {', '.join(map(str, torn))}" if torn else ""
        way = "name one of these" if complete else "let the run reach its first one"
        raise FileNotFoundError(f"{self.directory} has no complete {which} ({have}{broken}); {way}")

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            import orbax.checkpoint as ocp

            set_aside(self.directory)
            options = ocp.CheckpointManagerOptions(
                preservation_policy=LatestAndBest(self.keep, self._ranks),
                create=True,
                cleanup_tmp_directories=True,
                # A folder that cannot be made must fail here; in the background its writers wait 20 minutes.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            )
            self._manager = _manager(self.directory, options)
            self._ranks.update({step: self.record(step)["rank"] for step in scan_steps(self.directory)[0]})
        return self._manager

    def _reading(self) -> ocp.CheckpointManager:
        """The open manager, or one that changes nothing: a reader may look at a run that is being written."""
        if self._manager is not None:
            return self._manager
        if self._reader is None:
            import orbax.checkpoint as ocp

            with _without_warnings():
                options = ocp.CheckpointManagerOptions(read_only=True, create=False)
                self._reader = _manager(self.directory, options)
        return self._reader

    def _raise_failure(self) -> None:
        if self._manager is not None:
            try:
                self._manager.check_for_errors()
            except Exception as error:
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> CheckpointError:
        step, self._pending = self._pending, None
        return CheckpointError(f"checkpoint {step} could not be written to {self.directory}: {error}")


@contextmanager
def _without_warnings() -> Generator[None]:
    """Orbax warns that a directory opened for reading is read only, which is what was asked for."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fields(state: TrainState) -> dict[str, Any]:
    held = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return {name: value for name, value in held.items() if value is not None}


def _on(leaf: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _manager(directory: str, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
    import orbax.checkpoint as ocp

    handlers = {STATE: ocp.PyTreeCheckpointHandler(), RECORD: ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(directory, item_handlers=handlers, options=options)
