"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(destination: str | os.PathLike[str]) -> Generator[Path]:
    """A folder to fill, which becomes `destination` when the block ends well and is removed otherwise.

    Raises:
        FileExistsError: `destination` is a file or holds something, before or after the block.
        ValueError: it is a bucket's address.
    """
    if "://" in os.fspath(destination):
        raise ValueError(f"destination={destination} is no folder of this machine; give one and copy it")
    place = Path(destination).absolute()
    _require_free(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.parent / f".{place.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir()
    try:
        yield partial
        _require_free(place)
        partial.replace(place)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _require_free(place: Path) -> None:
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise FileExistsError(f"destination={place} is there and no folder; give an empty or a new folder")
    if place.is_dir() and any(place.iterdir()):
        raise FileExistsError(f"destination={place} holds files; give an empty or a new folder")
