"""A model under a process: from a noisy sample to the estimate of its two parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dew.diffusion.process import Estimate, Level, Process


class Denoises(Protocol):
    """What a sampler evaluates."""

    @property
    def process(self) -> Process: ...

    def __call__(self, x_t: jax.Array, level: Level, /) -> Estimate:
        """The estimate under the given conditions, for `x_t` `[B, ...]`."""
        ...

    def without(self, x_t: jax.Array, level: Level, /) -> Estimate:
        """The estimate without a condition.

        Raises:
            ValueError: there is none to evaluate.
        """
        ...


@dataclass(frozen=True, eq=False)
class Denoiser:
    """A model whose predictions are read by a process.

    Attributes:
        process: the convention.
        model: `model(scaled, noise_level, **conditions)` to a prediction of the sample's shape.
        given: the conditions.
        unconditional: what stands for no condition, or None.
    """

    process: Process
    model: Callable[..., jax.Array]
    given: Mapping[str, Any]
    unconditional: Mapping[str, Any] | None = None

    def __call__(self, x_t: jax.Array, level: Level, /) -> Estimate:
        return self._evaluate(x_t, level, self.given)

    def without(self, x_t: jax.Array, level: Level, /) -> Estimate:
        if self.unconditional is None:
            raise ValueError(
                "guidance needs the unconditional branch, and the denoiser was built without one; "
                "give process.denoiser its unconditional, or sample with guidance=None"
            )
        return self._evaluate(x_t, level, self.unconditional)

    def _evaluate(self, x_t: jax.Array, level: Level, conditions: Mapping[str, Any]) -> Estimate:
        scaled, told = self.process.input_at(x_t, level)
        prediction = self.model(scaled, told, **conditions)
        # A network may compute in bfloat16; everything from here on is float32 or wider.
        prediction = prediction.astype(jnp.promote_types(x_t.dtype, jnp.float32))
        return self.process.estimate(prediction, x_t, level)
