"""`StepStore`: one directory of steps in Orbax's format, written in the background and read at any time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from dew.training.checkpoint_errors import CheckpointError, DamagedCheckpoint
from dew.training.orbax_log import hear_of_failures_once, without_warnings
from dew.training.retention import LatestAndBest, outdated
from dew.training.step_commit import committing, delete
from dew.training.step_folders import (
    RECORD,
    STATE,
    finish_deletions,
    in_bucket,
    is_complete,
    scan_steps,
    set_aside,
    try_writing,
)

if TYPE_CHECKING:
    import orbax.checkpoint as ocp


class StepStore:
    """The steps in one directory. Writing opens it; reading alone changes nothing in it.

    Args:
        directory: absolute, or a bucket's address.
        keep: how many of the latest steps stay, besides the best one.
    """

    def __init__(self, directory: str, keep: int) -> None:
        self.directory = directory
        self._keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._reader: ocp.CheckpointManager | None = None
        self._pending: int | None = None
        self._ranks: dict[int, float | None] = {}

    def open(self) -> ocp.CheckpointManager:
        """Create the directory and read what it holds; later calls do nothing.

        Raises:
            CheckpointError: that is not possible.
        """
        if self._manager is None:
            try:
                self._manager = self._opened()
                complete = scan_steps(self.directory)[0]
            except OSError as error:
                raise CheckpointError(
                    f"checkpoints cannot be kept in {self.directory}: {error}; choose a folder that can be "
                    "written to"
                ) from error
            self._ranks.update({step: self.record(step).get("rank") for step in complete})
        return self._manager

    def path(self, step: int) -> str:
        """Where `step` lies, or will lie."""
        return f"{self.directory}/{step}"

    def scan(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Complete and incomplete steps, each in rising order."""
        return scan_steps(self.directory)

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return self._manager is not None and self._manager.is_saving_in_progress()

    def save(self, step: int, fields: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Schedule the write of `step`; returns once the arrays may be reused.

        Args:
            step: above all that are there.
            fields: the parts of the state.
            record: what JSON can say of the step; its "rank" decides which step is the best.

        Raises:
            CheckpointError: an earlier write failed, this one could not start, or the step cannot follow.
        """
        import orbax.checkpoint as ocp

        self.wait()
        manager = self.open()
        self._ranks[step] = record.get("rank")
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(dict(fields)), record=ocp.args.JsonSave(record))
        try:
            done = manager.save(step, args=items)
        except Exception as error:
            raise self._failure(step, error) from error
        if not done:
            raise CheckpointError(
                f"checkpoint {step} was not written: {self.directory} already holds step "
                f"{manager.latest_step()}; resume from it, or give the run a directory of its own"
            )
        self._pending = step

    def wait(self) -> None:
        """Wait for the pending write.

        Raises:
            CheckpointError: it failed.
        """
        if self._manager is None or self._pending is None:
            return
        step, self._pending = self._pending, None
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._failure(step, error) from error
        if jax.process_count() == 1 and not in_bucket(self.directory):
            self._see_committed(step)

    def read(self, step: int, template: Any) -> Any:
        """The parts of the state that `template` names, in its placement.

        Raises:
            DamagedCheckpoint: a file of the step is missing or broken.
        """
        import orbax.checkpoint as ocp

        arguments = ocp.args.PyTreeRestore(
            item=template,
            restore_args=ocp.checkpoint_utils.construct_restore_args(template),
            partial_restore=True,
        )
        with self._reads(step):
            return self._reading().restore(step, args=ocp.args.Composite(state=arguments))[STATE]

    def stored(self, step: int) -> dict[str, Any]:
        """Shape and dtype of every stored leaf, nested by field.

        Raises:
            DamagedCheckpoint: a file of the step is missing or broken.
        """
        with self._reads(step):
            metadata: Any = self._reading().item_metadata(step)[STATE]
            return dict(metadata.tree)

    def record(self, step: int) -> dict[str, Any]:
        """What is stored beside the state.

        Raises:
            DamagedCheckpoint: a file of the step is missing or broken.
        """
        import orbax.checkpoint as ocp

        with self._reads(step):
            read = self._reading().restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore()))
            return dict(read[RECORD])

    def _opened(self) -> ocp.CheckpointManager:
        import orbax.checkpoint as ocp

        hear_of_failures_once()
        set_aside(self.directory)
        finish_deletions(self.directory)
        remote = in_bucket(self.directory)
        options = ocp.CheckpointManagerOptions(
            create=True,
            cleanup_tmp_directories=True,
            preservation_policy=LatestAndBest(self._keep, self._ranks) if remote else None,
            temporary_path_class=None if remote else committing(self._delete_outdated),
            # A folder that cannot be made must fail here; in the background its writers wait 20 minutes.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        manager = _manager(self.directory, options)
        try_writing(self.directory)
        return manager

    def _delete_outdated(self, step: int) -> None:
        held, _ = self.scan()
        for old in outdated([each for each in held if each <= step], self._keep, self._ranks):
            delete(Path(self.path(old)))

    def _see_committed(self, step: int) -> None:
        if not is_complete(Path(self.path(step))):
            raise self._failure(step, OSError("its files are not there after the write"))

    def _reading(self) -> ocp.CheckpointManager:
        """The open manager, or one that changes nothing: a reader may look at a run that is being written."""
        if self._manager is not None:
            return self._manager
        if self._reader is None:
            import orbax.checkpoint as ocp

            with without_warnings():
                options = ocp.CheckpointManagerOptions(read_only=True, create=False)
                self._reader = _manager(self.directory, options)
        return self._reader

    @contextmanager
    def _reads(self, step: int) -> Generator[None]:
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError):  # the device's, not the file's
            raise
        except Exception as error:
            earlier = [held for held in self.scan()[0] if held < step]
            way = f"to go on from step {earlier[-1]}, move it away" if earlier else "no earlier step is there"
            cause = str(error).partition("See full")[0].strip().splitlines() or [type(error).__name__]
            raise DamagedCheckpoint(
                f"{self.path(step)} cannot be read: a file of it is missing or broken; {way} "
                f"({cause[0][:200]})"
            ) from error

    def _failure(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(f"checkpoint {step} could not be written to {self.directory}: {error}")


def _manager(directory: str, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
    import orbax.checkpoint as ocp

    handlers = {STATE: ocp.PyTreeCheckpointHandler(), RECORD: ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(directory, item_handlers=handlers, options=options)
