"""Folders in Dew's cache: each appears under its name complete or not at all, and is built once."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dew.config.cache import dew_cache_dir

ABANDONED_S = 24 * 3600.0
"""A half-written folder older than this belongs to no living process."""


def built(kind: str, key: str, build: Callable[[Path], None], complete: Callable[[Path], bool]) -> Path:
    """The folder `key` of the cache's part `kind`, found or built now.

    Two processes may build the same one: the later takes the earlier's.

    Args:
        kind: part of the cache.
        key: identifies what the folder is made from.
        build: writes into an empty folder.
        complete: whether a folder of that name can be used; one that cannot is replaced.
    """
    base = dew_cache_dir() / kind
    directory = base / key
    if complete(directory):
        return directory
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=base))
    try:
        build(draft)
        _publish(draft, directory, complete)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def _publish(draft: Path, directory: Path, complete: Callable[[Path], bool]) -> None:
    try:
        draft.rename(directory)
    except OSError:
        if not complete(directory):  # neither ours nor another process's: the folder there is damaged
            shutil.rmtree(directory)
            draft.rename(directory)


def _sweep(base: Path) -> None:
    for draft in base.glob(".draft-*"):
        try:
            if time.time() - draft.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(draft, ignore_errors=True)
        except FileNotFoundError:
            continue
