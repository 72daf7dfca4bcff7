"""A logged series made fit to draw: thinned without losing its extremes, and smoothed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

type Point = tuple[int, float]
"""A step and its value."""

SMOOTHED_FROM = 20
"""Points from which on a smoothed line says more than the points."""


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` of `points`: both ends, and the least, the greatest and one non-finite point of each
    stretch between them, so that no spike and no gap is lost."""
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    stretches = max(1, (limit - 2) // 3)
    kept = [points[0]]
    for index in range(stretches):
        stretch = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        finite = [point for point in stretch if math.isfinite(point[1])]
        chosen = set(next(([point] for point in stretch if not math.isfinite(point[1])), []))
        if finite:
            chosen |= {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
        kept += sorted(chosen)
    return [*kept, points[-1]]


def smooth(points: Sequence[Point]) -> list[Point]:
    """The running average whose memory is a fiftieth of the series, corrected for its start.

    `m_t = sum_i (1 - a)^i x_(t-i) / sum_i (1 - a)^i` over the finite points, with `a = 2 / (span + 1)`.
    """
    alpha = 2 / (max(5, len(points) / 50) + 1)
    total = mass = 0.0
    result: list[Point] = []
    for step, value in points:
        if math.isfinite(value):
            total = (1 - alpha) * total + value
            mass = (1 - alpha) * mass + 1
            result.append((step, total / mass))
    return result


def is_noisy(points: Sequence[Point]) -> bool:
    """Whether the line goes up and down more than three times its range, which a schedule does not."""
    values = [value for _, value in points if math.isfinite(value)]
    moved = sum(abs(after - before) for before, after in pairwise(values))
    return len(values) > 1 and moved > 3 * (max(values) - min(values))


def nonfinite_steps(points: Mapping[int, float]) -> list[int]:
    """The steps at which a value was NaN or infinite."""
    return [step for step, value in points.items() if not math.isfinite(value)]
