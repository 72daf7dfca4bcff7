"""What a model may be trained to predict.

Every target is a linear form `a x0 + b noise`. With `x_t = alpha x0 + sigma noise` and the determinant
`d = alpha b - sigma a`, a prediction F turns back into both parts:

    x0 = (b x_t - sigma F) / d        noise = (alpha F - a x_t) / d

so `|x0 error| = sigma / |d| * |F error|`: a loss weight is stated once for x0 and holds for every target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from dew.diffusion.schedules.base import numerics

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array

type TargetName = Literal["epsilon", "x0", "v", "velocity", "edm"]
"""`epsilon` is the noise, `x0` the sample, `v = alpha noise - sigma x0` (arXiv:2202.00512), `velocity = noise
- x0` (rectified flow), `edm` the F of EDM (arXiv:2206.00364, table 1)."""

type Form = Callable[[Array, Array, float], tuple[Array, Array, Array]]
"""From alpha, sigma and the standard deviation of the data to a, b and d."""


def _epsilon(alpha: Array, sigma: Array, sigma_data: float) -> tuple[Array, Array, Array]:
    xp = numerics(alpha)
    return xp.zeros_like(alpha), xp.ones_like(alpha), alpha


def _x0(alpha: Array, sigma: Array, sigma_data: float) -> tuple[Array, Array, Array]:
    xp = numerics(alpha)
    return xp.ones_like(alpha), xp.zeros_like(alpha), -sigma


def _v(alpha: Array, sigma: Array, sigma_data: float) -> tuple[Array, Array, Array]:
    return -sigma, alpha, alpha**2 + sigma**2


def _velocity(alpha: Array, sigma: Array, sigma_data: float) -> tuple[Array, Array, Array]:
    xp = numerics(alpha)
    return -xp.ones_like(alpha), xp.ones_like(alpha), alpha + sigma


def _edm(alpha: Array, sigma: Array, sigma_data: float) -> tuple[Array, Array, Array]:
    root = input_deviation(alpha, sigma, sigma_data)
    return sigma / (sigma_data * root), -sigma_data * alpha / root, -root / sigma_data


FORMS: Mapping[str, Form] = {
    "epsilon": _epsilon,
    "x0": _x0,
    "v": _v,
    "velocity": _velocity,
    "edm": _edm,
}
"""The coefficients of each target."""


def input_deviation(alpha: Array, sigma: Array, sigma_data: float) -> Array:
    """The standard deviation of x_t for data of standard deviation `sigma_data`."""
    return numerics(alpha).sqrt((sigma_data * alpha) ** 2 + sigma**2)
