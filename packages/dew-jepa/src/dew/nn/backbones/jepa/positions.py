"""Fixed position codes of a patch grid (arXiv 1706.03762, section 3.5, once for each axis)."""

from __future__ import annotations

import numpy as np


def sincos_positions(grid: tuple[int, int], width: int) -> np.ndarray:
    """Codes [N, width] float32 of the N grid places, row by row.

    A quarter of the width each holds sines and cosines of the row, then of the column, at the angles
    `place * 10000^(-i / (width / 4))`.

    Raises:
        ValueError: a width that 4 does not divide.
    """
    if width % 4:
        raise ValueError(
            f"hidden_size={width} must be a multiple of 4: sines and cosines of rows and columns"
        )
    frequencies = 10000.0 ** (-np.arange(width // 4) / (width // 4))
    places = np.indices(grid).reshape(2, -1)
    angles = places[:, :, None] * frequencies
    codes = [part(axis) for axis in angles for part in (np.sin, np.cos)]
    return np.concatenate(codes, axis=-1).astype(np.float32)
