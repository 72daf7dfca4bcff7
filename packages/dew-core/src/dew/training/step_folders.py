"""The step folders of a checkpoint directory: which are complete, and what becomes of the others.

A step is complete once Orbax has renamed it into place with its commit marker and all its items.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax

STATE, RECORD = "state", "record"
"""The items of a step: the train state, and what is stored beside it."""

MARKER = "commit_success.txt"


def absolute(directory: str) -> str:
    """A local path in full; a bucket's address as it is."""
    return directory.rstrip("/") if "://" in directory else os.path.abspath(os.path.expanduser(directory))


def scan_steps(directory: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Complete and incomplete steps, each in rising order."""
    from etils import epath

    root = epath.Path(directory)
    if not root.exists():
        return (), ()
    steps = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit())
    complete = tuple(step for step in steps if _is_complete(root / str(step)))
    return complete, tuple(step for step in steps if step not in complete)


def _is_complete(folder: Any) -> bool:
    return all((folder / name).exists() for name in (MARKER, f"{STATE}/{MARKER}", f"{RECORD}/{MARKER}"))


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
