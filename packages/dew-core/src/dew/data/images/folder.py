"""Which files of a folder are trained on: their order, labels, split and fingerprint, and their records.

Every header is read before training starts, so that a file which cannot be used is named then.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from dew.data.images.decoding import UnusableImage, check_header, decode_image
from dew.data.images.records import ImageRecords, Record

if TYPE_CHECKING:
    from dew.data.images.config import ImageFolder

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)
"""Files with another suffix are passed over."""
HEAD = 1 << 16
"""Bytes of each file that its fingerprint reads, beside its name and size."""


@dataclass(frozen=True)
class ImageFile:
    """An image below a folder.

    Attributes:
        path: where it is.
        name: its path relative to the folder, with `/`.
    """

    path: Path
    name: str

    @property
    def order(self) -> bytes:
        """A hash of the name: it decides place and split, whatever other files there are."""
        return hashlib.sha256(self.name.encode(errors="surrogateescape")).digest()


class FileRecords(ImageRecords):
    """Images decoded when they are asked for.

    Args:
        files: the image files.
        labels: the class of each, or None.
        size: height and width after resizing.
        channels: 3 for RGB, 1 for grey.
    """

    def __init__(
        self, files: Sequence[ImageFile], labels: Sequence[int] | None, *, size: int, channels: int
    ) -> None:
        self._files = files
        self._labels = labels
        self._size = size
        self._channels = channels

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Record:
        file = self._files[index]
        try:
            image = decode_image(file.path, size=self._size, channels=self._channels)
        except UnusableImage as error:
            raise UnusableImage(f"{file.path} {error}; replace it, or delete it and start anew") from error
        if self._labels is None:
            return {"image": image}
        return {"image": image, "label": np.int32(self._labels[index])}

    @property
    def identity(self) -> Mapping[str, object]:
        digest = hashlib.sha256()
        for file, label in zip(self._files, self._labels or [-1] * len(self._files), strict=True):
            digest.update(f"{file.name}\0{file.path.stat().st_size}\0{label}\0".encode(errors="replace"))
            with file.path.open("rb") as opened:
                digest.update(opened.read(HEAD))
        return {"images": digest.hexdigest(), "image_shape": [self._size, self._size, self._channels]}

    def __repr__(self) -> str:
        return f"FileRecords({len(self)} files)"


def folder_records(spec: ImageFolder, split: str) -> FileRecords:
    """The records of one split of `spec`, ordered by the hashes of their names.

    Raises:
        FileNotFoundError: no folder, or no image in it.
        PermissionError: a folder or file that may not be read.
        ValueError: files that cannot be used, images beside class folders, or an empty split.
    """
    files = list_images(spec.path, spec.glob)
    names = class_names(files, spec.labelled)
    check_all(files)
    chosen = sorted(in_split(files, spec, split), key=lambda file: file.order)
    if not chosen:
        raise ValueError(
            f"data.val_fraction={spec.val_fraction} leaves no image of {len(files)} in the split {split!r}; "
            "use another fraction, more images, or unset data.val_split"
        )
    number = {name: label for label, name in enumerate(names or ())}
    labels = None if names is None else [number[PurePosixPath(file.name).parts[0]] for file in chosen]
    return FileRecords(chosen, labels, size=spec.image_size, channels=spec.channels)


def in_split(files: Sequence[ImageFile], spec: ImageFolder, split: str) -> list[ImageFile]:
    """The files of a split: those with the lowest hashes are held out, so a new file moves no other."""
    if spec.val_split is None:
        return list(files)
    limit = int(spec.val_fraction * 2**64)
    held_out = [file for file in files if int.from_bytes(file.order[:8], "big") < limit]
    if not held_out and len(files) > 1:
        held_out = [min(files, key=lambda file: file.order)]
    if len(held_out) == len(files):
        held_out = sorted(files, key=lambda file: file.order)[: len(files) - 1]
    kept = {file.name for file in held_out}
    return held_out if split != "train" else [file for file in files if file.name not in kept]


def list_images(folder: str, pattern: str) -> list[ImageFile]:
    """The image files below `folder` that match `pattern`, sorted by name; links are followed.

    Raises:
        FileNotFoundError: no folder, or nothing in it.
        PermissionError: a folder that may not be read.
        ValueError: a link that leads back above itself.
    """
    root = Path(folder).expanduser()
    if root.is_file():
        raise ValueError(f"data.path={folder} is a file; name the folder that holds the images")
    if not root.is_dir():
        raise FileNotFoundError(f"data.path={folder} is not there; name a folder of images")
    seen: dict[str, tuple[tuple[int, int], ...]] = {str(root): (place_of(root),)}
    found: list[ImageFile] = []
    for parent, folders, names in os.walk(root, followlinks=True, onerror=refuse_unreadable):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for each in folders:
            path = os.path.join(parent, each)
            seen[path] = (*seen[parent], refused_loop(Path(path), seen[parent]))
        images = (each for each in names if Path(each).suffix.lower() in SUFFIXES and each[0] != ".")
        paths = (Path(parent, each) for each in images)
        found += [ImageFile(path, path.relative_to(root).as_posix()) for path in paths]
    wanted = pattern.split("/")
    found = [file for file in found if matches(file.name.split("/"), wanted)]
    if not found:
        raise FileNotFoundError(
            f"data.path={folder} holds no image that matches data.glob={pattern!r}; a file counts by its "
            f"suffix: {' '.join(sorted(SUFFIXES))}"
        )
    return sorted(found, key=lambda file: file.name)


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a relative path match the parts of a glob; `**` stands for any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])


def class_names(files: Sequence[ImageFile], labelled: bool | None) -> tuple[str, ...] | None:
    """The names of the sub-folders that are classes, or None where the folder is read without labels.

    Raises:
        ValueError: `labelled` is True and an image lies in no sub-folder, or unset and some do and some do
            not.
    """
    parts = [PurePosixPath(file.name).parts for file in files]
    loose = next((part[0] for part in parts if len(part) == 1), None)
    names = tuple(sorted({part[0] for part in parts if len(part) > 1}))
    if labelled is False or (labelled is None and len(names) < 2):
        return None
    if not names:
        raise ValueError(
            f"data.labelled=True reads sub-folders as classes, and {loose} lies in none; put the images of "
            "each class into a folder of its own, or unset data.labelled"
        )
    if loose is not None:
        raise ValueError(
            f"{loose} lies beside the folders {', '.join(names[:4])}, so it has no class; move it into one, "
            "or give data.labelled False to read all images without labels"
        )
    return names


def check_all(files: Sequence[ImageFile]) -> None:
    """Read every header.

    Raises:
        UnusableImage: some cannot be used; the message names up to five.
        PermissionError: one may not be read.
    """
    faults: list[str] = []
    for file in files:
        try:
            check_header(file.path)
        except UnusableImage as error:
            faults.append(f"{file.path} {error}")
    if faults:
        more = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise UnusableImage(
            f"{len(faults)} of {len(files)} images cannot be used: {'; '.join(faults[:5])}{more}. Repair or "
            "remove them, or leave them out by data.glob"
        )


def place_of(folder: Path) -> tuple[int, int]:
    """What tells a folder from every other, by whichever link it is reached."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def refused_loop(folder: Path, above: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The place of `folder`, which must not be one of those above it."""
    place = place_of(folder)
    if place in above:
        raise ValueError(f"{folder} is a link to a folder that holds it; remove the link")
    return place


def refuse_unreadable(error: OSError) -> None:
    """Raise what `os.walk` met instead of passing the folder over."""
    raise PermissionError(
        f"{error.filename} may not be read by this user; change its permissions or name another data.path"
    ) from error
