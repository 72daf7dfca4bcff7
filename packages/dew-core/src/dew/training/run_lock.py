"""One process trains a run at a time: two would delete each other's checkpoints and mix their records."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax

from dew.telemetry.appender import lock
from dew.training.distributed import agree_process_phase


@contextmanager
def sole_trainer(directory: str) -> Generator[None]:
    """Hold the run in `directory`, which is created, for the length of the block; process zero does.

    A run in a bucket is not held: there are no locks.

    Raises:
        BlockingIOError: another process trains this run.
    """
    held: int | None = None
    error: OSError | None = None
    if jax.process_index() == 0 and "://" not in directory:
        try:
            held = _held(Path(directory))
        except OSError as problem:
            error = problem
    agree_process_phase("taking hold of the run's folder", error)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _held(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    folder = os.open(directory, os.O_RDONLY)
    try:
        lock(folder, directory)
    except BlockingIOError:
        os.close(folder)
        raise BlockingIOError(
            f"{directory} is being trained by another process; wait for it, stop it, or give this run "
            "another trainer.name"
        ) from None
    return folder
