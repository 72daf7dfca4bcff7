"""Many small images as one: rows and columns that follow the captions, with a line between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

    type Tiles = UInt8[np.ndarray, "N H W C"]

SIDE = 96
"""Pixels of a tile's longer side; a larger image is made smaller by a whole factor."""
AREA = 16 * 64 * 64
"""Pixels of all tiles together; further images are left out, except within the first row."""
ACROSS = 16
"""Tiles of one row."""
LINE = 112
"""The grey of the lines between tiles."""


def columns_of(count: int, captions: Sequence[str]) -> tuple[int, str]:
    """How many tiles stand in a row, and what is written below.

    Captions that come round again head the columns, captions in runs of one length head the rows; others
    make the sheet about square.
    """
    names = list(dict.fromkeys(captions))
    whole = len(captions) == count
    if (
        whole
        and 1 < len(names) <= ACROSS
        and all(caption == names[index % len(names)] for index, caption in enumerate(captions))
    ):
        return len(names), f"columns: {', '.join(names)}" if count > len(names) else ", ".join(names)
    run = count // len(names) if names else 0
    if whole and 1 < run <= ACROSS and list(captions) == [name for name in names for _ in range(run)]:
        return run, ", ".join(names) if len(names) == 1 else f"rows: {', '.join(names)}"
    return min(ACROSS, math.ceil(math.sqrt(count))), ", ".join(captions)


def shown_of(tiles: Tiles, columns: int) -> int:
    """How many of the tiles, made small, fit on a sheet: whole rows, at least one."""
    count, height, width = tiles.shape[:3]
    factor = shrink(height, width)
    most = AREA // max(1, (height // factor) * (width // factor))
    return min(count, max(1, most // columns) * columns)


def shrink(height: int, width: int) -> int:
    """The whole factor that brings an image within `SIDE`."""
    return max(1, math.ceil(max(height, width) / SIDE))


def sheet(tiles: Tiles, columns: int) -> UInt8[np.ndarray, "H W C"]:
    """The tiles row by row; what is over from shrinking by a whole factor is cut at the right and below."""
    import numpy as np

    count, height, width, channels = tiles.shape
    factor = shrink(height, width)
    height, width = height // factor, width // factor
    cut = tiles[:, : height * factor, : width * factor]
    cells = cut.reshape(count, height, factor, width, factor, channels)
    small = np.round(cells.mean(axis=(2, 4), dtype=np.float64)).astype(np.uint8)
    rows, gap = math.ceil(count / columns), max(1, max(height, width) // 24)
    page = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, channels), LINE, np.uint8)
    for index, tile in enumerate(small):
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        page[top : top + height, left : left + width] = tile
    return page
