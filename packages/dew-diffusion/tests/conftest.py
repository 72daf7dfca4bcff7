"""Data whose denoisers and trajectories are known exactly: a Gaussian, and a mixture of two on a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from dew.diffusion import Estimate, Level, Process

WEIGHTS, MEANS, DEVIATIONS = np.array([0.3, 0.7]), np.array([-1.0, 0.6]), np.array([0.15, 0.25])


@dataclass(frozen=True, eq=False)
class ExactDenoiser:
    """The posterior means of x0 and of the noise; `without` is that of other data."""

    process: Process
    posterior: Callable[[jax.Array, Level], Estimate]
    other: Callable[[jax.Array, Level], Estimate] | None = None

    def __call__(self, x, level):
        return self.posterior(x, level)

    def without(self, x, level):
        return self.other(x, level)


def gaussian_posterior(deviation, mean):
    """x0 ~ N(mean, deviation^2): both parts given x_t are linear in x_t."""

    def posterior(x, level):
        surprise = (x - level.alpha * mean) / (level.alpha**2 * deviation**2 + level.sigma**2)
        return Estimate(mean + deviation**2 * level.alpha * surprise, level.sigma * surprise)

    return posterior


def mixture_mean(x, sigma):
    """E[x0 | x] of the mixture at noise sigma."""
    variance = DEVIATIONS**2 + sigma**2
    log_weight = jnp.log(WEIGHTS) - jnp.log(variance) / 2 - (x[..., None] - MEANS) ** 2 / (2 * variance)
    means = (MEANS * sigma**2 + x[..., None] * DEVIATIONS**2) / variance
    return jnp.sum(jax.nn.softmax(log_weight, axis=-1) * means, axis=-1)


def mixture_cdf(x, sigma):
    return np.sum(WEIGHTS * ndtr((x[..., None] - MEANS) / np.sqrt(DEVIATIONS**2 + sigma**2)), axis=-1)


@dataclass(frozen=True)
class Mixture:
    """0.3 N(-1, 0.15^2) + 0.7 N(0.6, 0.25^2)."""

    starts: tuple[float, ...] = (-2.0, -1.0, 0.0, 0.25, 1.0, 2.0)

    def denoiser(self, process):
        def posterior(x, level):
            clean = mixture_mean(x / level.alpha, level.sigma / level.alpha)
            return Estimate(clean, (x - level.alpha * clean) / level.sigma)

        return ExactDenoiser(process, posterior)

    def mean(self, x, sigma):
        return mixture_mean(x, sigma)

    def density(self, x, sigma):
        deviation = np.sqrt(DEVIATIONS**2 + sigma**2)
        scaled = (x[..., None] - MEANS) / deviation
        return np.sum(WEIGHTS * np.exp(-(scaled**2) / 2) / (deviation * np.sqrt(2 * np.pi)), axis=-1)

    def transported(self, sigma):
        """Where the probability-flow ODE takes 80 z: it keeps quantiles, so F inverts by bisection."""
        quantile = mixture_cdf(80 * np.asarray(self.starts), 80.0)
        low, high = np.full(len(self.starts), -500.0), np.full(len(self.starts), 500.0)
        for _ in range(200):
            middle = (low + high) / 2
            below = mixture_cdf(middle, sigma) < quantile
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2


@pytest.fixture(scope="session")
def mixture():
    return Mixture()


@pytest.fixture(scope="session")
def gaussian():
    """From a process, a standard deviation and means to the exact denoiser of N(mean, deviation^2)."""

    def build(process, deviation, mean=0.0, other=0.0):
        return ExactDenoiser(
            process, gaussian_posterior(deviation, mean), gaussian_posterior(deviation, other)
        )

    return build
