"""The cosine schedule (Nichol and Dhariwal 2021, arXiv:2102.09672, equation 17) in continuous time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dew.diffusion.schedules.base import numerics

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array


@dataclass(frozen=True)
class CosineAngle:
    """`alpha(t)^2 = f(t) / f(0)`, `f(t) = cos^2(pi/2 (t + s) / (1 + s))`, `alpha^2 + sigma^2 = 1`.

    Nothing of the signal is left at t = 1. Time runs over [0, 1]; a model is told
    `1000 t`.

    Attributes:
        offset: the s above, which keeps some noise near t = 0.

    Raises:
        ValueError: a negative offset.
    """

    offset: float = 0.008

    def __post_init__(self) -> None:
        if not 0 <= self.offset < math.inf:
            raise ValueError(f"offset={self.offset} must be finite and not negative")

    @property
    def first_time(self) -> float:
        return 1.0

    @property
    def zero_snr(self) -> bool:
        return True

    @property
    def flow(self) -> bool:
        return True

    @property
    def ratios(self) -> tuple[float, float]:
        return 0.0, math.inf

    @property
    def _start(self) -> float:
        """The angle of f at t = 0."""
        return math.pi / 2 * self.offset / (1 + self.offset)

    def alpha(self, t: Array, /) -> Array:
        # cos(start + along) as the sine of what is left to pi/2, which is zero exactly at t = 1.
        left = math.pi / 2 * (1 - t) / (1 + self.offset)
        return numerics(t).sin(left) / math.cos(self._start)

    def sigma(self, t: Array, /) -> Array:
        # cos^2(start) - cos^2(start + along), without the cancellation near t = 0.
        xp = numerics(t)
        along = math.pi / 2 * t / (1 + self.offset)
        return xp.sqrt(xp.sin(along) * xp.sin(2 * self._start + along)) / math.cos(self._start)

    def noise_level(self, t: Array, /) -> Array:
        return 1000 * t

    def time_of(self, ratio: np.ndarray, /) -> np.ndarray:
        cosine = math.cos(self._start) / np.sqrt(1 + np.asarray(ratio, np.float64) ** 2)
        return (np.arccos(cosine) - self._start) * (1 + self.offset) / (math.pi / 2)

    def even_times(self, steps: int, /) -> np.ndarray:
        return 1 - np.arange(steps, dtype=np.float64) / steps
