"""The step folders of a checkpoint directory: which are complete, and what becomes of the others.

A step is complete once it has its name, the commit markers of the step and of all its items and, on this
machine's file systems, every file that its list names in full size.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax

from dew.training.step_commit import DELETED, MARKER, is_whole

STATE, RECORD = "state", "record"
"""The items of a step: the train state, and what is stored beside it."""


def absolute(directory: str) -> str:
    """A local path in full; a bucket's address as it is."""
    return directory.rstrip("/") if in_bucket(directory) else os.path.abspath(os.path.expanduser(directory))


def in_bucket(directory: str) -> bool:
    """Whether `directory` is an address rather than a path."""
    return "://" in directory


def scan_steps(directory: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Complete and incomplete steps, each in rising order."""
    from etils import epath

    root = epath.Path(directory)
    if not root.exists():
        return (), ()
    steps = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit())
    complete = tuple(step for step in steps if is_complete(root / str(step)))
    return complete, tuple(step for step in steps if step not in complete)


def is_complete(folder: Any) -> bool:
    """Whether the step in `folder` can be relied on."""
    if not all((folder / name).exists() for name in (MARKER, f"{STATE}/{MARKER}", f"{RECORD}/{MARKER}")):
        return False
    return in_bucket(os.fspath(folder)) or is_whole(Path(os.fspath(folder)))


def set_aside(directory: str) -> None:
    """Rename incomplete step folders: Orbax would count them as steps and refuse to write below them."""
    from etils import epath

    _, torn = scan_steps(directory)
    for step in torn if jax.process_index() == 0 else ():
        source = epath.Path(directory) / str(step)
        target = epath.Path(directory) / f"incomplete-{step}"
        while target.exists():
            target = target.with_name(target.name + "-")
        source.rename(target)
        warnings.warn(f"{source} was no complete checkpoint; it now lies at {target}", stacklevel=3)


def try_writing(directory: str) -> None:
    """Make a file in `directory` and remove it again: better to fail now than at the first save.

    Raises:
        OSError: the folder takes no files.
    """
    if jax.process_index() == 0 and not in_bucket(directory):
        trial = Path(directory) / ".trial"
        trial.write_bytes(b"0")
        trial.unlink()


def finish_deletions(directory: str) -> None:
    """Delete the rest of steps whose deletion was cut short."""
    if jax.process_index() == 0 and not in_bucket(directory):
        for rest in Path(directory).glob(f"{DELETED}*"):
            shutil.rmtree(rest, ignore_errors=True)
