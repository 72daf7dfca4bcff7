"""The estimate at a point of a grid, guided where the guidance says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from dew.diffusion.process import Estimate, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from dew.diffusion.denoiser import Denoises
    from dew.diffusion.grid import Grid
    from dew.sampling.images.config import CFG
    from dew.sampling.solvers.base import Evaluate


def evaluator(denoise: Denoises, grid: Grid, guidance: CFG | None, dtype: jnp.dtype) -> Evaluate:
    """The evaluation of a trajectory: from samples and the index of a point to the estimate there.

    A point that is not guided costs one evaluation of the model, a guided one two. The mean of two estimates
    is taken of both their parts, which is linear in the prediction, whatever the model predicts.
    """
    alpha, sigma, told = (jnp.asarray(values, dtype) for values in (grid.alpha, grid.sigma, grid.noise_level))

    def at(index: jax.Array | int) -> Level:
        return Level(alpha[index], sigma[index], told[index])

    def given(x: jax.Array, index: jax.Array | int) -> Estimate:
        return denoise(x, at(index))

    inside = guided_points(grid, guidance)
    if guidance is None or not inside.any():
        return given
    mixed = mixture(denoise, guidance.scale, at)
    if inside.all():
        return mixed
    points = jnp.asarray(inside)

    def where_guided(x: jax.Array, index: jax.Array | int) -> Estimate:
        return jax.lax.cond(points[index], mixed, given, x, index)

    return where_guided


def mixture(denoise: Denoises, scale: float, at: Callable[[jax.Array | int], Level]) -> Evaluate:
    """The guided estimate; a scale of 0 leaves the unconditional one alone."""

    def mixed(x: jax.Array, index: jax.Array | int) -> Estimate:
        without = denoise.without(x, at(index))
        if scale == 0:
            return without
        given = denoise(x, at(index))
        return Estimate(
            without.clean + scale * (given.clean - without.clean),
            without.noise + scale * (given.noise - without.noise),
        )

    return mixed


def guided_points(grid: Grid, guidance: CFG | None) -> np.ndarray:
    """Which points of the grid have a scale other than 1."""
    if guidance is None or guidance.scale == 1:
        return np.zeros(len(grid), bool)
    if guidance.interval is None:
        return np.ones(len(grid), bool)
    least, greatest = guidance.interval
    return (grid.ratio >= least) & (grid.ratio <= greatest)
