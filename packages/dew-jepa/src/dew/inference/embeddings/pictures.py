"""Images as the encoder takes them: files and arrays brought to the trained shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dew.data.images.decoding import UnusableImage, check_header, decode_image
from dew.data.images.packaged import standardized

type Shape = tuple[int, int, int]


def read_images(paths: Sequence[Path], sample: Shape) -> np.ndarray:
    """Decode files to bytes [N, H, W, C].

    Raises:
        ValueError: no file, a trained shape that is not square, or a file that is no usable image.
        FileNotFoundError: there is no such file.
    """
    height, width, channels = sample
    if height != width:
        raise ValueError(f"files are cut to squares, and the encoder takes {height}x{width}; pass an array")
    if not paths:
        raise ValueError("no image is given; name one file at least")
    return np.stack([_decoded(path, height, channels) for path in paths])


def _decoded(path: Path, size: int, channels: int) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; name image files")
    try:
        check_header(path)
        return decode_image(path, size=size, channels=channels)
    except UnusableImage as error:
        raise ValueError(f"{path} {error}") from error


def image_bytes(images: np.ndarray, sample: Shape, *, standardize: bool) -> np.ndarray:
    """An array of images [N, H, W, C], one alone given a leading axis; bytes, or floats in [-1, 1].

    Raises:
        ValueError: no image, another shape, another type, or floats to standardize.
    """
    images = images[None] if images.shape == sample else images
    if images.ndim != 4 or images.shape[1:] != sample or not len(images):
        raise ValueError(f"images of shape {images.shape} do not fit the encoder, which takes [N, *{sample}]")
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise ValueError(f"images of type {images.dtype} must be uint8, or floats in [-1, 1]")
        if standardize:
            raise ValueError("standardize is for bytes and files; standardize floats yourself")
        return images.astype(np.float32)
    return standardized(images) if standardize else images
