"""The variance-exploding schedule of EDM (Karras et al. 2022, arXiv:2206.00364): time is sigma itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dew.diffusion.schedules.base import numerics

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array


@dataclass(frozen=True)
class Exploding:
    """`alpha = 1`, `sigma = t`; a model is told `ln(t) / 4`.

    Attributes:
        sigma_min: the least noise level that is sampled at.
        sigma_max: the greatest one, where sampling starts.

    Raises:
        ValueError: not `0 < sigma_min < sigma_max`.
    """

    sigma_min: float = 0.002
    sigma_max: float = 80.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max < float("inf"):
            raise ValueError(
                f"sigma_min={self.sigma_min} and sigma_max={self.sigma_max} must be finite with "
                "0 < sigma_min < sigma_max"
            )

    @property
    def first_time(self) -> float:
        return self.sigma_max

    @property
    def zero_snr(self) -> bool:
        return False

    @property
    def flow(self) -> bool:
        return False

    @property
    def ratios(self) -> tuple[float, float]:
        return self.sigma_min, self.sigma_max

    def alpha(self, t: Array, /) -> Array:
        return numerics(t).ones_like(t)

    def sigma(self, t: Array, /) -> Array:
        return t

    def noise_level(self, t: Array, /) -> Array:
        return numerics(t).log(t) / 4

    def time_of(self, ratio: np.ndarray, /) -> np.ndarray:
        return np.asarray(ratio, np.float64)

    def even_times(self, steps: int, /) -> np.ndarray:
        return self.sigma_max * (1 - np.arange(steps, dtype=np.float64) / steps)
