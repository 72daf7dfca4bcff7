"""How a step folder becomes a checkpoint, in an order that leaves a whole one at every moment.

Its data is made durable, then the list of its files, then the marker, then the name that readers look for;
only after that are older steps deleted. The list of names and sizes tells a torn folder from a whole one
without reading it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from orbax.checkpoint.path import atomicity

FILES = "files.json"
"""The list of a step's files and their sizes in bytes."""

MARKER = "commit_success.txt"
UNLISTED = (FILES, MARKER, "_CHECKPOINT_METADATA")
"""What is written after the list, or again."""

DELETED = "deleted-"
"""Before the name of a step that is being deleted."""


def committing(committed: Callable[[int], None]) -> type[atomicity.AtomicRenameTemporaryPath]:
    """Orbax's temporary folder of a step, committed in the order above.

    Args:
        committed: called with the step once it is durable under its name, in the writing thread.
    """
    from orbax.checkpoint.path import atomicity

    class CommittedStep(atomicity.AtomicRenameTemporaryPath):
        async def finalize(self) -> None:
            final = Path(os.fspath(self.get_final()))
            if not final.name.isdigit():  # an item's folder, inside the step's
                await super().finalize()
                return
            await asyncio.to_thread(seal, Path(os.fspath(self.get())))
            await super().finalize()
            await asyncio.to_thread(settle, final)
            await asyncio.to_thread(committed, int(final.name))

    return CommittedStep


def seal(folder: Path) -> None:
    """Make every file under `folder` durable and list them."""
    sizes = {path: os.stat(folder / path).st_size for path in _files(folder)}
    for path in sizes:
        sync(folder / path)
    for parent, _, _ in os.walk(folder, topdown=False):
        sync(Path(parent))
    (folder / FILES).write_text(json.dumps(sizes, indent=0))
    sync(folder / FILES)


def settle(folder: Path) -> None:
    """Make the marker, the list's entry and the folder's own name durable."""
    for name in UNLISTED:
        if (folder / name).exists():
            sync(folder / name)
    sync(folder)
    sync(folder.parent)


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds every file of its list in its full size; False without a list."""
    try:
        listed = cast("dict[str, int]", json.loads((folder / FILES).read_text()))
        return all(os.stat(folder / path).st_size == size for path, size in listed.items())
    except (OSError, ValueError):
        return False


def delete(folder: Path) -> None:
    """Delete a step, which stops being one before the first of its files goes."""
    aside = folder.with_name(f"{DELETED}{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    sync(folder.parent)
    shutil.rmtree(aside)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _files(folder: Path) -> list[str]:
    found: list[Any] = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    return sorted(path for path in found if path not in UNLISTED)
