"""The transforms a `Sampling` policy stands for, after `transformers.generation.logits_process` 5.16.1.

Each row is transformed by itself. Scores are float32 or wider.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState


@struct.dataclass
class Temperature:
    """`logits / value`.

    Attributes:
        value: above 0; greedy choice is `Greedy`.
    """

    value: float | jax.Array

    def __post_init__(self) -> None:
        if isinstance(self.value, (int, float)) and not self.value > 0:
            raise ValueError(f"Temperature({self.value}) must be above 0; use Greedy() for the best token")

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return logits / self.value


@struct.dataclass
class TopK:
    """Keep the k best scores and every score equal to the k-th, so ties may keep more than k.

    Attributes:
        k: at least 1; a k beyond the vocabulary keeps everything.
    """

    k: int = struct.field(pytree_node=False)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"TopK({self.k}) must keep at least 1 token")

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        kept = min(self.k, logits.shape[-1])
        worst = jax.lax.top_k(logits, kept)[0][..., -1:]
        return jnp.where(logits < worst, -jnp.inf, logits)


@struct.dataclass
class TopP:
    """Keep the smallest set of best tokens whose probability reaches p.

    In ascending order, equal scores by their index, a token is dropped while the mass up to it stays within
    `1 - p`. The first best token is always kept.

    Attributes:
        p: in [0, 1]; 1 keeps everything.
    """

    p: float | jax.Array

    def __post_init__(self) -> None:
        if isinstance(self.p, (int, float)) and not 0 <= self.p <= 1:
            raise ValueError(f"TopP({self.p}) must lie in [0, 1]")

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        order = jnp.argsort(logits, axis=-1, stable=True)
        ascending = jnp.take_along_axis(logits, order, axis=-1)
        mass = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
        dropped = jnp.where(jnp.asarray(self.p) < 1, mass <= 1 - self.p, False)
        rows = jnp.arange(logits.shape[0])[:, None]
        keep = jnp.zeros(logits.shape, bool).at[rows, order].set(~dropped)
        keep = keep.at[rows[:, 0], jnp.argmax(logits, axis=-1)].set(True)
        return jnp.where(keep, logits, -jnp.inf)


@struct.dataclass
class MinP:
    """Keep tokens whose probability is at least p times the best one's.

    Attributes:
        p: in [0, 1]; 0 keeps everything.
    """

    p: float | jax.Array

    def __post_init__(self) -> None:
        if isinstance(self.p, (int, float)) and not 0 <= self.p <= 1:
            raise ValueError(f"MinP({self.p}) must lie in [0, 1]")

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        chances = jax.nn.softmax(logits, axis=-1)
        best = jnp.max(chances, axis=-1, keepdims=True)
        return jnp.where(chances < self.p * best, -jnp.inf, logits)


@struct.dataclass
class Greedy:
    """Zero on the first best token, -inf elsewhere. A row without a distribution is passed through."""

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        best = jnp.argmax(logits, axis=-1, keepdims=True)
        chosen = jnp.where(jnp.arange(logits.shape[-1]) == best, 0.0, -jnp.inf).astype(logits.dtype)
        return jnp.where(drawable(logits)[:, None], chosen, logits)


def drawable(logits: jax.Array) -> jax.Array:
    """`[rows]`, where every score is finite or -inf and at least one is finite."""
    finite = jnp.isfinite(logits)
    return jnp.all(finite | jnp.isneginf(logits), axis=-1) & jnp.any(finite, axis=-1)
