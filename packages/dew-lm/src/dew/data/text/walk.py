"""The files below a folder that a glob chooses, each once; links to folders are not followed.

The glob is that of Python's `glob` with `recursive=True`: `**` stands for any folders, `*` for any name, and
names that begin with a dot are chosen only by a part of the pattern that begins with one.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath


def matching_files(root: Path, pattern: str, *, without: Path | None = None) -> list[Path]:
    """The files below `root` that match `pattern`.

    A link to a file is read as the file. Of several names of one file the first that is no link is taken,
    else the first.

    Args:
        root: a folder.
        pattern: relative to it, with `/`.
        without: a folder that is passed over.
    """
    parts = PurePath(pattern).parts
    real = os.path.realpath(root)
    found = [name for name in _names(root, parts, without) if matches(PurePath(name).parts, parts)]
    by_file: dict[str, Path] = {}
    for link, name in sorted((os.path.islink(root / name), name) for name in found):
        place = os.path.join(real, name)  # no folder on the way is a link
        if os.path.isfile(place):
            by_file.setdefault(os.path.realpath(place) if link else place, root / name)
    return list(by_file.values())


def matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob."""
    if not pattern:
        return not name
    head, rest = pattern[0], pattern[1:]
    if head == "**" and matches(name, rest):
        return True
    if not name or (name[0].startswith(".") and not head.startswith(".")):
        return False
    if head == "**":
        return matches(name[1:], pattern)
    return fnmatch.fnmatchcase(name[0], head) and matches(name[1:], rest)


def linked_folders(root: Path) -> list[Path]:
    """The links to folders below `root`."""
    return [
        Path(folder, each)
        for folder, folders, _ in os.walk(root)
        for each in sorted(folders)
        if Path(folder, each).is_symlink()
    ]


def _names(root: Path, pattern: Sequence[str], without: Path | None) -> Iterator[str]:
    hidden = any(part.startswith(".") for part in pattern)
    left_out = None if without is None else os.path.realpath(without)
    for folder, folders, names in os.walk(root):
        folders[:] = [
            each
            for each in sorted(folders)
            if (hidden or not each.startswith("."))
            and (left_out is None or os.path.realpath(os.path.join(folder, each)) != left_out)
        ]
        below = os.path.relpath(folder, root)
        yield from (os.path.normpath(os.path.join(below, name)) for name in names)
