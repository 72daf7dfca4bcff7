"""`ShardStore`: one process's copies of its own part of a state, on a disk of its machine.

A copy counts once all processes of the run hold theirs. So a process deletes a copy only when it knows, from
the pool's board, that every process holds a newer one of the same attempt at the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from dew.training import board
from dew.training.checkpoint_errors import CheckpointError, DamagedCheckpoint
from dew.training.shard_file import Held, Part, copied, write_part
from dew.training.step_commit import DELETED, delete, is_whole, seal, settle

UNDONE = ".partial"


class ShardStore:
    """The copies of this process in one directory. Writing opens it; reading alone changes nothing in it.

    Args:
        directory: absolute, of this process alone.
        board_name: of the run's copies on the pool's board.
    """

    def __init__(self, directory: str, board_name: str) -> None:
        self.directory = directory
        self._board_name = board_name
        self._life: str | None = None
        self._pending: tuple[int, Future[None]] | None = None

    def open(self, life: str) -> None:
        """Create the directory and clear it of half-written and half-deleted copies.

        Args:
            life: names this attempt at the run; the same on all processes.

        Raises:
            CheckpointError: that is not possible.
        """
        self._life = life
        try:
            Path(self.directory).mkdir(parents=True, exist_ok=True)
            for pattern in (f"*{UNDONE}", f"{DELETED}*"):
                for rest in Path(self.directory).glob(pattern):
                    shutil.rmtree(rest)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be kept in {self.directory}: {error}; choose a folder that can be "
                "written to"
            ) from error

    @property
    def opened(self) -> bool:
        """Whether copies can be written."""
        return self._life is not None

    def path(self, step: int) -> str:
        """Where the copy of `step` lies, or will lie."""
        return f"{self.directory}/{step}"

    def scan(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Whole and torn copies of this process, each in rising order of their steps."""
        return scan_copies(Path(self.directory))

    @property
    def writing(self) -> bool:
        """Whether a write is under way."""
        return self._pending is not None and not self._pending[1].done()

    def save(self, step: int, fields: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Schedule the write of `step`; returns once the arrays may be reused.

        Args:
            step: copies of later steps, of an earlier attempt at the run, are deleted by it.
            fields: the parts of the state.
            record: what JSON can say of the step.

        Raises:
            CheckpointError: an earlier write failed.
        """
        self.wait()
        held = copied(dict(fields))
        executor = ThreadPoolExecutor(1, thread_name_prefix="dew-copy")
        self._pending = step, executor.submit(self._write, step, held, {**record, "life": self._life})
        executor.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the pending write.

        Raises:
            CheckpointError: it failed.
        """
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except Exception as error:
            raise CheckpointError(
                f"emergency copy {step} could not be written to {self.directory}: {error}"
            ) from error

    def read(self, step: int, template: Any) -> Any:
        """The parts of the state that `template` names, in its placement.

        Raises:
            DamagedCheckpoint: a file of the copy is broken, or lacks what the placement needs.
        """
        with self._reads(step):
            return self._part(step).read(template)

    def stored(self, step: int) -> dict[str, Any]:
        """Shape and dtype of every stored leaf, nested by field.

        Raises:
            DamagedCheckpoint: a file of the copy is broken.
        """
        with self._reads(step):
            return self._part(step).stored()

    def record(self, step: int) -> dict[str, Any]:
        """What is stored beside the state, with the attempt's `life`.

        Raises:
            DamagedCheckpoint: a file of the copy is broken.
        """
        with self._reads(step):
            return self._part(step).record

    def lacking(self, step: int, template: Any) -> str | None:
        """The path of a leaf that the copy does not hold as `template` places it, or None.

        Raises:
            DamagedCheckpoint: a file of the copy is broken.
        """
        with self._reads(step):
            return self._part(step).lacking(template)

    def _part(self, step: int) -> Part:
        return Part(Path(self.path(step)))

    def _write(self, step: int, held: Mapping[str, Held], record: Mapping[str, Any]) -> None:
        self._clear(upto=step)
        final = Path(self.path(step))
        undone = final.with_name(f"{step}{UNDONE}")
        undone.mkdir()
        write_part(undone, held, record)
        seal(undone)
        if final.exists():  # of an earlier attempt at the run
            delete(final)
        undone.rename(final)
        settle(final)
        mine = json.dumps({"step": step, "life": self._life})
        board.post(f"copies/{self._board_name}/{jax.process_index()}", mine)
        self._clear(upto=step)

    def _clear(self, upto: int) -> None:
        """Delete what no resumed run would go on from: copies past `upto`, and those all have outlived."""
        everyones = self._held_by_all()
        for step in sorted(step for kind in self.scan() for step in kind):
            if step > upto or step < everyones:
                delete(Path(self.path(step)))

    def _held_by_all(self) -> int:
        """A step of which, or of later ones, every process holds a copy of this attempt; -1 for none."""
        told = [json.loads(text) for text in board.read(f"copies/{self._board_name}").values()]
        steps = [each["step"] for each in told if each["life"] == self._life]
        return min(steps) if len(steps) == jax.process_count() else -1

    @contextmanager
    def _reads(self, step: int) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpoint(
                f"{self.path(step)} cannot be read on process {jax.process_index()}: {error}; move it away, "
                "and the run goes on from an older one"
            ) from error


def scan_copies(directory: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Whole and torn copies in `directory`, each in rising order of their steps."""
    if not directory.exists():
        return (), ()
    steps = sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    whole = tuple(step for step in steps if is_whole(directory / str(step)))
    return whole, tuple(step for step in steps if step not in whole)
