"""Loss weights, each derived once for the error of x0.

A law returns `w sigma^2` with w the weight of the squared x0 error; in that form it is finite at both ends of
every schedule. The squared error of a target with determinant d then weighs `w sigma^2 / d^2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from dew.diffusion.schedules.base import numerics
from dew.diffusion.targets import input_deviation

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array

type Weighting = Literal["uniform", "edm", "min_snr"]
"""`uniform` weighs the target's own error 1 at every time. `edm` weighs the x0 error `(s^2 + sigma_data^2) /
(s sigma_data)^2` at ratio s. `min_snr` weighs it `min(SNR, gamma)` (arXiv:2303.09556)."""

type Law = Callable[[Array, Array, Array, float, float], Array]
"""From alpha, sigma, d, the data's standard deviation and gamma to `w sigma^2`."""


def _uniform(alpha: Array, sigma: Array, d: Array, sigma_data: float, gamma: float) -> Array:
    return d**2


def _edm(alpha: Array, sigma: Array, d: Array, sigma_data: float, gamma: float) -> Array:
    return (input_deviation(alpha, sigma, sigma_data) / sigma_data) ** 2


def _min_snr(alpha: Array, sigma: Array, d: Array, sigma_data: float, gamma: float) -> Array:
    return numerics(alpha).minimum(alpha**2, gamma * sigma**2)


LAWS: Mapping[str, Law] = {"uniform": _uniform, "edm": _edm, "min_snr": _min_snr}
"""The law of each weighting."""
