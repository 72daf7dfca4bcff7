"""`Checkpoints`: asynchronous Orbax storage of a run's state with the data position it belongs to.

A step is complete once its data, its marker and its name are durable; anything else is named and passed
over. A write that fails in the background is raised by the next `save` or `wait`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from dew.training.checkpoint_errors import CheckpointError as CheckpointError
from dew.training.checkpoint_errors import DamagedCheckpoint as DamagedCheckpoint
from dew.training.compare import differences, refuse_differences
from dew.training.local_copies import LocalCopies, complete_steps
from dew.training.positions import packed_position, position_for
from dew.training.retention import ranked
from dew.training.shard_store import ShardStore
from dew.training.state import TrainState
from dew.training.step_folders import absolute
from dew.training.step_store import StepStore

if TYPE_CHECKING:
    from dew.data.dataset import DataPartition


class Checkpoints:
    """The checkpoints of one run. Storage is opened on first use; reading alone changes nothing in it.

    Args:
        directory: holds one folder per step.
        keep: how many of the latest steps stay, besides the best one.
        local_directory: a folder on this machine for emergency copies, shared by any number of runs; the
            latest copy of this run is kept. A run resumes from it where it is newer than every step in
            `directory`. Each of several processes keeps its own part of the state on its machine, and they
            resume from the newest copy that all of them hold whole, in as many processes and with the
            same placement as made it.
        local_every: attempts between emergency copies.

    Raises:
        ValueError: `keep` or `local_every` below 1, or one of the two local options without the other.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 2,
        local_directory: str | os.PathLike[str] | None = None,
        local_every: int | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1, or a stopped run has nothing to resume from")
        if (local_directory is None) != (local_every is None):
            raise ValueError(
                f"local_directory={local_directory!r} and local_every={local_every!r} go together; give both "
                "or neither"
            )
        if local_every is not None and local_every < 1:
            raise ValueError(f"local_every={local_every} must be at least 1")
        self.directory = absolute(os.fspath(directory))
        self.keep = keep
        self.local_every = local_every
        self._durable = StepStore(self.directory, keep)
        self._copies = (
            None if local_directory is None else LocalCopies(os.fspath(local_directory), self.directory)
        )

    @property
    def latest(self) -> int | None:
        """The newest complete step, emergency copies included, or None.

        With emergency copies, all of several processes ask for it together.
        """
        return self._newest(lambda store, step: None)

    def latest_for(self, template_of: Callable[[Mapping[str, Any]], Any]) -> int | None:
        """`latest`, without the emergency copies that do not hold the state as it is placed here.

        All of several processes ask for it together.

        Args:
            template_of: the template that a checkpoint is restored into, as `restore` takes it, from the
                checkpoint's `stored`.
        """

        def fault(store: ShardStore, step: int) -> str | None:
            template = template_of(store.stored(step))
            fields = _fields(template) if isinstance(template, TrainState) else template
            leaf = store.lacking(step, fields)
            return None if leaf is None else f"holds another placement's part of {leaf}"

        return self._newest(fault)

    def open(self) -> None:
        """Create the directories and read what they hold; later calls do nothing.

        Raises:
            CheckpointError: that is not possible.
        """
        self._durable.open()
        if self._copies is not None:
            self._copies.opened()

    def path(self, step: int) -> str:
        """Where the checkpoint of `step` lies, or will lie."""
        return self._durable.path(step)

    def steps(self) -> tuple[int, ...]:
        """The complete steps in rising order, without emergency copies.

        An incomplete folder with a step's name is named in a warning.
        """
        return complete_steps(self._durable)

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
        record = {
            "positions": _positions(saved, share),
            "metrics": dict(metrics or {}),
            "rank": ranked(metrics, higher_is_better),
        }
        self._durable.save(step, _fields(state), record)

    def save_copy(
        self, step: int, state: TrainState, saved: bytes | None, *, share: DataPartition | None = None
    ) -> None:
        """Schedule an emergency copy of `step`; the arguments are those of `save`.

        Raises:
            ValueError: a position without its share, or no `local_directory`.
            CheckpointError: an earlier copy failed, or this one could not start.
        """
        if self._copies is None:
            raise ValueError("local_directory=None: this run keeps no emergency copies")
        record = {"positions": _positions(saved, share), "metrics": {}, "rank": None}
        self._copies.opened().save(step, _fields(state), record)

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return self._durable.writing or (self._copies is not None and self._copies.writing)

    def wait(self) -> None:
        """Wait for the pending writes.

        Raises:
            CheckpointError: one failed.
        """
        self._durable.wait()
        if self._copies is not None:
            self._copies.wait()

    def restore(
        self, template: Any = None, step: int | None = None, *, share: DataPartition | None = None
    ) -> tuple[Any, bytes | None]:
        """Read a checkpoint and the data position for the reader of `share`.

        Args:
            template: a `TrainState`, or a mapping of some of its fields, of arrays or `jax.ShapeDtypeStruct`s
                with shardings; structure, dtypes, shapes and placement are the template's. None returns the
                stored fields as plain dicts and lists of arrays on the default device.
            step: None takes `latest`, for which all of several processes then ask together.
            share: the reader whose position is wanted; None asks for none.

        Raises:
            FileNotFoundError: there is no such complete checkpoint.
            ValueError: tree, shapes or dtypes differ from the template's (the first five differences are
                listed), or the position was saved by readers of other shares.
            DamagedCheckpoint: a file of it is broken.
        """
        store, step = self._existing(step)
        record, stored, where = store.record(step), store.stored(step), store.path(step)
        if template is None:
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            state = store.read(step, jax.tree.map(lambda leaf: _on(leaf, device), stored))
        elif isinstance(template, TrainState):
            refuse_differences(differences(_fields(template), stored), where)
            state = replace(template, **store.read(step, _fields(template)))
        else:
            refuse_differences(differences(template, {name: stored.get(name) for name in template}), where)
            state = store.read(step, template)
        position = None if share is None else position_for(record["positions"], share, where)
        return state, position

    def stored(self, step: int | None = None) -> dict[str, Any]:
        """Shape and dtype of every stored leaf, nested by field, without reading any.

        Args:
            step: None takes `latest`, for which all of several processes then ask together.

        Raises:
            FileNotFoundError: there is no such complete checkpoint.
            DamagedCheckpoint: a file of it is missing or broken.
        """
        store, step = self._existing(step)
        return store.stored(step)

    def record(self, step: int | None = None) -> dict[str, Any]:
        """What is stored beside the state: `positions`, the `metrics` of the step, and their `rank`.

        Args:
            step: None takes `latest`, for which all of several processes then ask together.

        Raises:
            FileNotFoundError: there is no such complete checkpoint.
            DamagedCheckpoint: a file of it is missing or broken.
        """
        store, step = self._existing(step)
        return store.record(step)

    def _newest(self, fault: Callable[[ShardStore, int], str | None]) -> int | None:
        newest = max(self.steps(), default=None)
        return newest if self._copies is None else self._copies.newest(newest, fault)

    def _existing(self, step: int | None) -> tuple[StepStore | ShardStore, int]:
        wanted = self.latest if step is None else step
        for store in (self._durable, None if self._copies is None else self._copies.store()):
            if store is not None and wanted in store.scan()[0]:
                return store, wanted
        complete, torn = self._durable.scan()
        which = "checkpoint" if step is None else f"checkpoint {step}"
        have = f"complete: {', '.join(map(str, complete)) or 'none'}"
        broken = f"; incomplete: {', '.join(map(str, torn))}" if torn else ""
        way = "name one of these" if complete else "let the run reach its first one"
        raise FileNotFoundError(f"{self.directory} has no complete {which} ({have}{broken}); {way}")


def _positions(saved: bytes | None, share: DataPartition | None) -> list[dict[str, Any]]:
    if (saved is None) != (share is None):
        raise ValueError(
            "a data position is saved together with the share its reader read; give both or neither"
        )
    return packed_position(saved, share)


def _fields(state: TrainState) -> dict[str, Any]:
    held = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return {name: value for name, value in held.items() if value is not None}


def _on(leaf: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
