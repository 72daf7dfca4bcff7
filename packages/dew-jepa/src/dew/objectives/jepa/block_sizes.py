"""The sizes a random block of patches can have, each with its exact probability.

Scale s and aspect a are uniform and independent of each other. In a grid of N patches a block of them has
`k = floor(s N)` patches in mind, `h = round(sqrt(k a))` rows and `w = round(sqrt(k / a))` columns. Both
intervals fall into finitely many pieces of one size each, so the law is a table. No JAX is imported here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

type Interval = tuple[float, float]
type Sizes = dict[tuple[int, int], float]
"""(rows, columns) of a block to its probability."""

SLACK = 1e-9
"""What a bound may miss a whole number by and still count as it."""


def block_sizes(grid: tuple[int, int], scale: Interval, aspect: Interval, *, called: str = "") -> Sizes:
    """The law of a block's size.

    Args:
        grid: rows and columns of patches.
        scale: bounds of the block's share of the grid.
        aspect: bounds of rows over columns.
        called: what errors put before `scale` and `aspect`, as `mask.target_`.

    Raises:
        ValueError: bounds out of order or out of range, or a block that is empty or larger than the grid.
    """
    check_bounds(scale, aspect, called=called)
    sizes: defaultdict[tuple[int, int], float] = defaultdict(float)
    counts = _patch_counts(grid[0] * grid[1], scale)
    if 0 in counts:
        raise ValueError(
            f"{called}scale={scale} reaches a block without a patch in a grid of {grid[0]}x{grid[1]}; use "
            "smaller patches, or raise the bounds"
        )
    for patches, chance in counts.items():
        for size, share in _shapes(patches, aspect).items():
            sizes[size] += chance * share
    for rows, columns in sizes:
        if rows < 1 or columns < 1 or rows > grid[0] or columns > grid[1]:
            raise ValueError(
                f"{called}scale={scale} and {called}aspect={aspect} reach a block of {rows}x{columns} "
                f"patches in a grid of {grid[0]}x{grid[1]}; use smaller patches, or change the bounds"
            )
    return dict(sizes)


def check_bounds(scale: Interval, aspect: Interval, *, called: str = "") -> None:
    """Refuse bounds that hold for no grid.

    Raises:
        ValueError: out of order or out of range; the message puts `called` before their names.
    """
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"{called}scale={scale} must be two shares of the grid, 0 < low <= high <= 1")
    if not 0 < aspect[0] <= aspect[1] < math.inf:
        raise ValueError(f"{called}aspect={aspect} must be two finite ratios, 0 < low <= high")


def _patch_counts(total: int, scale: Interval) -> dict[int, float]:
    low, high = (bound * total for bound in scale)
    if high - low <= SLACK:
        return {math.floor(low + SLACK): 1.0}
    counts: dict[int, float] = {}
    for patches in range(math.floor(low + SLACK), math.floor(high - SLACK) + 1):
        share = (min(high, patches + 1) - max(low, patches)) / (high - low)
        if share > SLACK:
            counts[patches] = share
    return counts


def _shapes(patches: int, aspect: Interval) -> Sizes:
    low, high = aspect
    if high == low:
        return {_rounded(patches, low): 1.0}
    halves = [side + 0.5 for side in range(patches + 1)]
    edges = {half * half / patches for half in halves} | {patches / (half * half) for half in halves}
    cuts = [low, *sorted(edge for edge in edges if low < edge < high), high]
    shapes: defaultdict[tuple[int, int], float] = defaultdict(float)
    for start, end in pairwise(cuts):
        if end - start > SLACK:
            shapes[_rounded(patches, (start + end) / 2)] += (end - start) / (high - low)
    return shapes


def _rounded(patches: int, aspect: float) -> tuple[int, int]:
    return round(math.sqrt(patches * aspect)), round(math.sqrt(patches / aspect))
