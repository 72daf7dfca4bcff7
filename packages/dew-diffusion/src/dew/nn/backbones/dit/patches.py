"""Images as rows of square patches, and where each patch stands."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float


def split(x: Float[Array, "B H W C"], patch: int) -> Float[Array, "B N D"]:
    """[B, H, W, C] as [B, N, P P C]: patches row by row, pixels row by row in each.

    Raises:
        ValueError: a side that is no multiple of `patch`.
    """
    rows, height, width, channels = x.shape
    if height % patch or width % patch:
        raise ValueError(
            f"patch_size={patch} must divide the sample's sides, {height} and {width}; change either"
        )
    cut = x.reshape(rows, height // patch, patch, width // patch, patch, channels)
    return cut.swapaxes(2, 3).reshape(rows, -1, patch * patch * channels)


def join(x: Float[Array, "B N D"], grid: tuple[int, int], patch: int) -> Float[Array, "B H W C"]:
    """Undo `split`, for a grid of so many patches down and across."""
    cut = x.reshape(x.shape[0], *grid, patch, patch, -1)
    return cut.swapaxes(2, 3).reshape(x.shape[0], grid[0] * patch, grid[1] * patch, -1)


def positions(grid: tuple[int, int], width: int) -> Float[np.ndarray, "N E"]:
    """Sinusoids of each patch's row, then of its column, [N, width]; `width` is a multiple of 4.

    A coordinate p is `sin(p w_i)` and `cos(p w_i)` for `w_i = 10000^(-i / (width / 4))`.
    """
    rates = 10000.0 ** -(np.arange(width // 4) / (width // 4))
    rows, columns = np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), indexing="ij")
    parts: list[np.ndarray] = []
    for coordinate in (rows, columns):
        angles = coordinate.reshape(-1, 1) * rates
        parts += [np.sin(angles), np.cos(angles)]
    return np.concatenate(parts, axis=1).astype(np.float32)
