"""Images as rows of square patches, and where each patch stands.

Dimensions: B images, H by W pixels of C channels, P the side of a patch, N = (H / P) (W / P) patches.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float


def patchify(images: Float[Array, "B H W C"], patch: int) -> Float[Array, "B N F"]:
    """Cut images into patches, row by row, and flatten each to F = P P C numbers, row by row as well.

    Raises:
        ValueError: a side that `patch` does not divide.
    """
    rows, height, width, channels = images.shape
    if height % patch or width % patch:
        raise ValueError(
            f"patch_size={patch} must divide the sample's sides, {height} and {width}; change either"
        )
    cut = images.reshape(rows, height // patch, patch, width // patch, patch, channels)
    return cut.swapaxes(2, 3).reshape(rows, -1, patch * patch * channels)


def unpatchify(patches: Float[Array, "B N F"], grid: tuple[int, int], patch: int) -> Float[Array, "B H W C"]:
    """Undo `patchify`, for a grid of so many patches down and across."""
    rows = patches.shape[0]
    cut = patches.reshape(rows, *grid, patch, patch, -1)
    return cut.swapaxes(2, 3).reshape(rows, grid[0] * patch, grid[1] * patch, -1)


def sincos_positions(grid: tuple[int, int], width: int) -> Float[np.ndarray, "N E"]:
    """Fixed codes [N, width] float32 of the places of a grid, row by row (arXiv 1706.03762, section 3.5, once
    for each axis).

    A quarter of the width each holds sines and cosines of the row, then of the column, at the angles
    `place * 10000^(-i / (width / 4))`.

    Raises:
        ValueError: a width that 4 does not divide.
    """
    if width % 4:
        raise ValueError(f"width={width} must be a multiple of 4: sines and cosines of rows and columns")
    frequencies = 10000.0 ** (-np.arange(width // 4) / (width // 4))
    angles = np.indices(grid).reshape(2, -1)[:, :, None] * frequencies
    codes = [part(axis) for axis in angles for part in (np.sin, np.cos)]
    return np.concatenate(codes, axis=-1).astype(np.float32)
