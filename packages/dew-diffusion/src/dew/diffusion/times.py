"""The laws that training times are drawn from, each as its quantile function.

A draw is `quantile(u)` with u uniform on (0, 1), so that one uniform number belongs to one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from dew.diffusion.schedules.straight_line import shifted


class TimeLaw(Protocol):
    """A distribution of training times."""

    def quantile(self, u: jax.Array, /) -> jax.Array:
        """The time below which the fraction `u` of the draws lies."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """`ln t ~ N(mean, std^2)`: EDM's noise levels."""

    mean: float = -1.2
    std: float = 1.2

    def quantile(self, u: jax.Array, /) -> jax.Array:
        return jnp.exp(self.mean + self.std * ndtri(u))


@dataclass(frozen=True)
class RhoUniform:
    """Noise levels uniform in `sigma^(1/rho)` between two ends: the density of EDM's sampling grid."""

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0

    def quantile(self, u: jax.Array, /) -> jax.Array:
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        return (low + u * (high - low)) ** self.rho


@dataclass(frozen=True)
class Uniform:
    """Uniform on [0, 1], then shifted as sampling times are."""

    shift: float = 1.0

    def quantile(self, u: jax.Array, /) -> jax.Array:
        return jnp.asarray(shifted(u, self.shift))


@dataclass(frozen=True)
class LogitNormal:
    """`logit t ~ N(mean, std^2)`, then shifted as sampling times are (arXiv:2403.03206, section 3.1)."""

    mean: float = 0.0
    std: float = 1.0
    shift: float = 1.0

    def quantile(self, u: jax.Array, /) -> jax.Array:
        return jnp.asarray(shifted(jax.nn.sigmoid(self.mean + self.std * ndtri(u)), self.shift))


@dataclass(frozen=True)
class UniformIndex:
    """Uniform over the whole numbers 0 to `count - 1`: the entries of a table."""

    count: int

    def quantile(self, u: jax.Array, /) -> jax.Array:
        return jnp.minimum(jnp.floor(u * self.count), self.count - 1)


def uniform_rows(key: jax.Array, rows: int | jax.Array) -> jax.Array:
    """One float32 in (0, 1) for each row, drawn by the row's own key.

    Args:
        key: typed PRNG key of the step.
        rows: how many rows, or their global indices `[B]`.
    """
    indices = jnp.arange(rows) if isinstance(rows, int) else rows
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(indices)
    # Draws are multiples of 2^-23 from 0 on; half a spacing keeps both ends out.
    return jax.vmap(lambda each: jax.random.uniform(each, (), jnp.float32))(keys) + 2.0**-24
