"""Where a run's emergency copies lie: on a disk of this machine, in a folder that belongs to this run alone.

The run's checkpoint directory holds an identity drawn when the first copy is made. The copies of a directory
that was emptied since, or of another run, have another identity, and nothing resumes from them. Below the
folder of that name the copies of a run in one process lie by themselves, and those of several processes in a
folder for each of them, since each holds its own part of the state alone.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path

import jax

from dew.training import pool
from dew.training.checkpoint_errors import CheckpointError
from dew.training.copy_agreement import agreed_copy
from dew.training.distributed import agree_process_phase
from dew.training.shard_store import ShardStore, scan_copies
from dew.training.step_folders import absolute, in_bucket
from dew.training.step_store import StepStore

IDENTITY = "local_copies"
"""The file in a checkpoint directory that names its copies' folder."""

OF_PROCESS = re.compile(r"process-(\d+)-of-(\d+)")


class LocalCopies:
    """The emergency copies of one run on this machine.

    Args:
        local_directory: of any number of runs.
        directory: of the run's checkpoints, absolute.
    """

    def __init__(self, local_directory: str, directory: str) -> None:
        self._root = absolute(local_directory)
        self._directory = directory
        self._store: StepStore | ShardStore | None = None
        self._said: set[str] = set()

    def newest(self, checkpoint: int | None, fault: Callable[[ShardStore, int], str | None]) -> int | None:
        """The newest of `checkpoint` and the copies that can be used; others are named in a warning.

        All of several processes call it together.

        Args:
            checkpoint: the newest checkpoint, or None.
            fault: why the whole copy of a process cannot be used, completing "process 1"; None if it can.
        """
        store, above = self.store(), -1 if checkpoint is None else checkpoint
        copy: int | None = None
        passed: list[str] = []
        if isinstance(store, StepStore):
            copy = max(complete_steps(store), default=None)
        elif jax.process_count() > 1:
            copy, passed = agreed_copy(
                store, above=above, fault=lambda step: None if store is None else fault(store, step)
            )
        found = max(above, -1 if copy is None else copy)
        if jax.process_index() == 0:
            self._name([*passed, *self._of_other_counts(found)], found)
        return None if found < 0 else found

    def opened(self) -> StepStore | ShardStore:
        """The store, ready to be written; all of several processes call it together.

        Raises:
            ValueError: several processes, and no folder of this machine.
            CheckpointError: it cannot be written.
        """
        if jax.process_count() == 1:
            if not isinstance(self._store, StepStore):
                self._store = self._alone(_told(self._directory, create=True) or "")
            self._store.open()
            return self._store
        if not isinstance(self._store, ShardStore) or not self._store.opened:
            store = self._sharded(_shared_identity(self._directory))
            store.open(life=pool.exchange("the attempt at the run", uuid.uuid4().hex)[0])
            self._store = store
        return self._store

    def store(self) -> StepStore | ShardStore | None:
        """The store for reading; None where this run has made no copy.

        Raises:
            ValueError: several processes, and no folder of this machine.
            CheckpointError: the run's identity cannot be read.
        """
        if self._store is None and (name := _told(self._directory)) is not None:
            self._store = self._alone(name) if jax.process_count() == 1 else self._sharded(name)
        return self._store

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return self._store is not None and self._store.writing

    def wait(self) -> None:
        """Wait for the pending write.

        Raises:
            CheckpointError: it failed.
        """
        if self._store is not None:
            self._store.wait()

    def _alone(self, name: str) -> StepStore:
        return StepStore(f"{self._root}/{name}", keep=1)

    def _sharded(self, name: str) -> ShardStore:
        index, count = jax.process_index(), jax.process_count()
        if in_bucket(self._root):
            raise ValueError(
                f"local_directory={self._root!r} with {count} processes must be a folder of each machine, "
                "not a bucket"
            )
        return ShardStore(f"{self._root}/{name}/process-{index}-of-{count}", board_name=name)

    def _of_other_counts(self, above: int) -> list[str]:
        """A phrase for the newest copy past `above` that a run of this many processes cannot use."""
        name = _told(self._directory)
        held = [] if name is None or in_bucket(self._root) else _counted(Path(self._root) / name)
        newer = [each for each in held if each[0] > above and each[1] != jax.process_count()]
        if not newer:
            return []
        step, count = max(newer)
        made = "one process" if count == 1 else f"{count} processes"
        return [f"that of step {step}, since {made} made it, and this run has {jax.process_count()}"]

    def _name(self, passed: list[str], found: int) -> None:
        """Warn, once, of the copies that are passed over."""
        start = f"step {found}" if found >= 0 else "the start"
        text = f"emergency copies are passed over: {'; '.join(passed)}; the run goes on from {start}"
        if passed and text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=5)


def complete_steps(store: StepStore) -> tuple[int, ...]:
    """The complete steps of a store in rising order; an incomplete one is named in a warning."""
    complete, torn = store.scan()
    for step in torn:
        warnings.warn(f"{store.path(step)} is no complete checkpoint; it is passed over", stacklevel=3)
    return complete


def _counted(root: Path) -> list[tuple[int, int]]:
    """The whole copies below `root`, of which each process made its part, with the number of processes."""
    found = [(step, 1) for step in scan_copies(root)[0]]
    for folder in root.iterdir() if root.exists() else ():
        of = OF_PROCESS.fullmatch(folder.name)
        found += [(step, int(of[2])) for step in scan_copies(folder)[0]] if of else []
    return found


def _shared_identity(directory: str) -> str:
    """The identity that process zero reads or makes, on all processes."""
    error: CheckpointError | None = None
    name = ""
    if jax.process_index() == 0:
        try:
            name = _told(directory, create=True) or ""
        except CheckpointError as problem:
            error = problem
    agree_process_phase("preparing emergency copies", error)
    return pool.exchange("the name of the emergency copies", name)[0]


def _told(directory: str, *, create: bool = False) -> str | None:
    try:
        return _identity(directory, create=create)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be kept in {directory}: {error}; choose a folder that can be written to"
        ) from error


def _identity(directory: str, *, create: bool) -> str | None:
    from etils import epath

    path = epath.Path(directory) / IDENTITY
    name = path.read_text() if path.exists() else ""
    if name or not create:
        return name or None
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"dew-{uuid.uuid4().hex}"
    partial = path.with_name(f"{IDENTITY}.{os.getpid()}")
    partial.write_text(name)
    partial.replace(path)
    return name
