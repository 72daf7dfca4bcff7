"""Guidance as plain values; importing it needs no JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CFG:
    """Classifier-free guidance (arXiv:2207.12598): `unconditional + scale (conditional - unconditional)`.

    Attributes:
        scale: 1 is the conditional estimate and 0 the unconditional one, each with one evaluation.
        interval: least and greatest sigma / alpha between which scale holds (arXiv:2404.07724); outside of it
            the scale is 1. Unset guides everywhere.

    Raises:
        ValueError: a scale that is not finite, or an interval that does not grow from 0 or above.
    """

    scale: float = 3.0
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"guidance.scale={self.scale} must be finite; 1 does not guide")
        if self.interval is not None and not 0 <= self.interval[0] < self.interval[1]:
            raise ValueError(
                f"guidance.interval={self.interval} must be two values of sigma / alpha, 0 <= least < most"
            )
