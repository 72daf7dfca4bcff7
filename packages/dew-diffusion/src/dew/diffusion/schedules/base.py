"""What every noise schedule answers.

A noisy sample is `x_t = alpha(t) x0 + sigma(t) noise`. The noise-to-signal ratio `s = sigma / alpha` grows
with t. Each law reads NumPy arrays on the host in float64, where grids are built, and JAX arrays inside a
compiled step, in their own dtype.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

type Array = jax.Array | np.ndarray


class Schedule(Protocol):
    """A noise schedule over its own time."""

    @property
    def first_time(self) -> float:
        """The noisiest time, at which sampling starts."""
        ...

    @property
    def zero_snr(self) -> bool:
        """Whether there is no signal at all at `first_time`."""
        ...

    @property
    def flow(self) -> bool:
        """Whether a trajectory is followed in `sigma / (alpha + sigma)` instead of `sigma / alpha`."""
        ...

    @property
    def ratios(self) -> tuple[float, float]:
        """The least and the greatest `sigma / alpha`; 0 or infinite where the schedule gets there."""
        ...

    def alpha(self, t: Array, /) -> Array:
        """The factor of the signal at time `t`."""
        ...

    def sigma(self, t: Array, /) -> Array:
        """The factor of the noise at time `t`."""
        ...

    def noise_level(self, t: Array, /) -> Array:
        """The number by which a model is told the time."""
        ...

    def time_of(self, ratio: np.ndarray, /) -> np.ndarray:
        """The float64 time at which `sigma / alpha` is `ratio`; on the host."""
        ...

    def even_times(self, steps: int, /) -> np.ndarray:
        """`steps` times evenly apart from `first_time` down, float64, ending above the clean end."""
        ...


def numerics(array: Array) -> Any:
    """The namespace that computes on `array`: NumPy for host arrays, jax.numpy for traced ones."""
    return np if isinstance(array, (np.ndarray, np.generic)) else jnp
