"""The straight line of rectified flow (Liu et al. 2022, arXiv:2209.03003), with the time shift of SD3
(Esser et al. 2024, arXiv:2403.03206, section 5.3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array


@dataclass(frozen=True)
class StraightLine:
    """`alpha = 1 - t`, `sigma = t`, t in [0, 1]; a model is told `1000 t`.

    Attributes:
        shift: moves even times towards the noise, `t' = shift t / (1 + (shift - 1) t)`; 1 leaves them.

    Raises:
        ValueError: a shift that is not positive.
    """

    shift: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.shift < float("inf"):
            raise ValueError(f"shift={self.shift} must be positive and finite; 1 leaves the times even")

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
        return 0.0, float("inf")

    def alpha(self, t: Array, /) -> Array:
        return 1 - t

    def sigma(self, t: Array, /) -> Array:
        return t

    def noise_level(self, t: Array, /) -> Array:
        return 1000 * t

    def time_of(self, ratio: np.ndarray, /) -> np.ndarray:
        ratio = np.asarray(ratio, np.float64)
        return ratio / (1 + ratio)

    def even_times(self, steps: int, /) -> np.ndarray:
        return np.asarray(shifted(1 - np.arange(steps, dtype=np.float64) / steps, self.shift))


def shifted(t: Array, shift: float) -> Array:
    """`shift t / (1 + (shift - 1) t)`; keeps 0 and 1."""
    return shift * t / (1 + (shift - 1) * t)
