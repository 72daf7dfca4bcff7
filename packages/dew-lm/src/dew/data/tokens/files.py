"""Which files of a corpus folder hold a split: one `.bin`, or shards of ArrayRecord or Parquet."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

type StoreKind = Literal["bin", "array_record", "parquet"]

KINDS: dict[str, StoreKind] = {
    ".bin": "bin",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".parquet": "parquet",
}
"""Suffix -> the store it names."""

SHARD = re.compile(r"-(\d+)-of-(\d+)$")
"""The end of the name of one shard of several."""


def file_identity(path: str | Path) -> tuple[str, int, int]:
    """What tells a file from another or an earlier one: absolute path, size and time of change."""
    found = os.stat(path)
    return (os.path.abspath(path), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, in the order of their ids.

    Attributes:
        kind: how they hold ids.
        paths: one for `bin`, else one or more.
    """

    kind: StoreKind
    paths: tuple[Path, ...]


def split_files(directory: Path, split: str) -> SplitFiles | None:
    """The files of `split` in `directory`: `train.bin`, or `train.parquet`,
    `train-00000-of-00002.parquet`, ...

    Returns:
        The files sorted by name, or None where there are none.

    Raises:
        ValueError: files of two kinds, several `.bin` files, or a set of numbered shards with a gap.
    """
    found: dict[StoreKind, list[Path]] = defaultdict(list)
    for path in sorted(directory.iterdir()):
        kind = KINDS.get(path.suffix)
        if kind is not None and (path.stem == split or path.stem.startswith(f"{split}-")):
            found[kind].append(path)
    if not found:
        return None
    if len(found) > 1:
        named = ", ".join(paths[0].name for paths in found.values())
        raise ValueError(f"{directory} holds {split} in several stores ({named}); keep one of them")
    ((kind, paths),) = found.items()
    if kind == "bin" and [path.stem for path in paths] != [split]:
        raise ValueError(f"{directory} holds {paths[0].name}; a .bin split is one file, {split}.bin")
    _require_all_shards(directory, split, paths)
    return SplitFiles(kind, tuple(paths))


def _require_all_shards(directory: Path, split: str, paths: list[Path]) -> None:
    numbered = [match for path in paths if (match := SHARD.search(path.stem))]
    if not numbered:
        return
    counts = {int(match[2]) for match in numbered}
    have = sorted(int(match[1]) for match in numbered)
    if len(numbered) != len(paths) or len(counts) != 1 or have != list(range(max(counts))):
        raise ValueError(
            f"{directory} holds shards {', '.join(path.name for path in paths)} of {split}, which are not "
            "one whole set; add the missing ones or take the others away"
        )
