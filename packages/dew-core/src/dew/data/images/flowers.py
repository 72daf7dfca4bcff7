"""The 102 Category Flower Dataset as its authors distribute it: `jpg/`, `imagelabels.mat`, `setid.mat`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from dew.data.images.folder import FileRecords, ImageFile, check_all
from dew.data.images.packaged import packaged
from dew.data.images.records import class_by_class

if TYPE_CHECKING:
    from dew.data.images.config import OxfordFlowers

SOURCE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
PARTS = ("jpg", "imagelabels.mat", "setid.mat")
SETS = {"train": "trnid", "valid": "valid", "test": "tstid"}


def flower_records(spec: OxfordFlowers, split: str) -> FileRecords:
    """The records of one of the published splits, the classes in turns.

    Raises:
        FileNotFoundError: no copy, or an incomplete one; the message says where to get it.
        ImportError: SciPy is not installed.
        ValueError: a damaged copy.
    """
    root = copy_at(spec.path)
    labels = matrix(root / "imagelabels.mat", "labels") - 1
    numbers = matrix(root / "setid.mat", SETS[split])
    if labels.size == 0 or labels.min() < 0 or labels.max() > 101 or not within(numbers, labels.size):
        raise ValueError(f"{root} holds labels or splits that do not fit the 102 classes; unpack it anew")
    numbers = np.sort(numbers)
    numbers = numbers[class_by_class(labels[numbers - 1])]
    names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
    files = [ImageFile(root / name, name) for name in names]
    check_all(files)
    chosen = [int(label) for label in labels[numbers - 1]]
    return FileRecords(files, chosen, size=spec.image_size, channels=spec.channels)


def copy_at(path: str | None) -> Path:
    """The folder of the unpacked set.

    Raises:
        FileNotFoundError: none is named, or one of its parts is missing.
    """
    how = (
        f"download 102flowers.tgz, imagelabels.mat and setid.mat from {SOURCE} and unpack them in one folder"
    )
    if path is None:
        raise FileNotFoundError(f"data.path is unset: no package ships the flowers; {how}, then name it here")
    root = Path(path).expanduser()
    missing = [part for part in PARTS if not (root / part).exists()]
    if missing:
        raise FileNotFoundError(f"data.path={path} lacks {', '.join(missing)}; {how}")
    return root


def matrix(path: Path, name: str) -> Int[np.ndarray, " N"]:
    """One variable of a MATLAB file as a flat array of integers.

    Raises:
        ValueError: no such file format or variable.
    """
    reader = packaged("scipy.io", "scipy", "The flowers' labels are MATLAB files, whose reader")
    try:
        return np.asarray(reader.loadmat(path, variable_names=[name])[name]).reshape(-1).astype(np.int64)
    except (KeyError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise ValueError(f"{path} holds no readable {name!r}; download it anew from {SOURCE}") from error


def within(numbers: Int[np.ndarray, " N"], count: int) -> bool:
    """Whether every number is one of `1..count`."""
    return bool(numbers.size) and bool(numbers.min() >= 1) and bool(numbers.max() <= count)
