"""Filters that cut the distribution by its entropy or by a floor under its probabilities.

They follow `transformers.generation.logits_process` 5.16.1. Each row is filtered by itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState


@struct.dataclass
class Typical:
    """Locally typical sampling: keep the tokens whose surprise lies nearest to the entropy.

    With `d_i = |-log p_i - H(p)|`, tokens join in the order of `d` until their mass reaches `mass`; all at
    the distance of the last one are kept. The most probable token may go. Source: arXiv 2202.00666, section
    3.

    Attributes:
        mass: in (0, 1).
    """

    mass: float | jax.Array

    def __post_init__(self) -> None:
        inside_unit_interval("Typical", self.mass)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        distance = jnp.abs(-log_probs - entropy(log_probs)[:, None])
        order = jnp.argsort(distance, axis=-1, stable=True)
        nearest = jnp.take_along_axis(distance, order, axis=-1)
        mass = jnp.cumsum(jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1), axis=-1)
        last = jnp.minimum(jnp.sum(mass < self.mass, axis=-1, keepdims=True), logits.shape[-1] - 1)
        return jnp.where(distance > jnp.take_along_axis(nearest, last, axis=-1), -jnp.inf, logits)


@struct.dataclass
class EpsilonCutoff:
    """Keep tokens of probability `epsilon` or more, and the best ones in any case.

    Source: arXiv 2210.15191, section 4.1.

    Attributes:
        epsilon: in (0, 1).
    """

    epsilon: float | jax.Array

    def __post_init__(self) -> None:
        inside_unit_interval("EpsilonCutoff", self.epsilon)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return above(logits, self.epsilon)


@struct.dataclass
class EtaCutoff:
    """Keep tokens of probability `min(epsilon, sqrt(epsilon) exp(-H(p)))` or more, and the best in any case.

    Source: arXiv 2210.15191, section 4.2.

    Attributes:
        epsilon: in (0, 1).
    """

    epsilon: float | jax.Array

    def __post_init__(self) -> None:
        inside_unit_interval("EtaCutoff", self.epsilon)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        spread = jnp.exp(-entropy(jax.nn.log_softmax(logits, axis=-1)))[:, None]
        return above(logits, jnp.minimum(self.epsilon, jnp.sqrt(self.epsilon) * spread))


@struct.dataclass
class TopH:
    """Keep the most probable tokens while their part of the entropy stays within `fraction` of the whole.

    Entropy and probabilities are those of the `candidates` best tokens alone; the best one is always kept.
    Source: arXiv 2509.02510, algorithm 1.

    Attributes:
        fraction: in (0, 1].
        candidates: how many of the best tokens are looked at, at least 1.
    """

    fraction: float | jax.Array = 1.0
    candidates: int = struct.field(pytree_node=False, default=100)

    def __post_init__(self) -> None:
        if isinstance(self.fraction, (int, float)) and not 0 < self.fraction <= 1:
            raise ValueError(f"TopH(fraction={self.fraction}) must lie in (0, 1]")
        if self.candidates < 1:
            raise ValueError(f"TopH(candidates={self.candidates}) must be at least 1")

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        best, places = jax.lax.top_k(logits, min(self.candidates, logits.shape[-1]))
        log_probs = jax.nn.log_softmax(best, axis=-1)
        reached = jnp.cumsum(surprise(log_probs), axis=-1)
        chosen = reached <= self.fraction * entropy(log_probs)[:, None]
        chosen = chosen.at[:, 0].set(True)
        rows = jnp.arange(logits.shape[0])[:, None]
        keep = jnp.zeros(logits.shape, bool).at[rows, places].set(chosen)
        return jnp.where(keep, logits, -jnp.inf)


def above(logits: jax.Array, floor: float | jax.Array) -> jax.Array:
    """`logits` with every token of a probability under `floor` dropped, except those tied for the best."""
    best = jnp.max(logits, axis=-1, keepdims=True)
    dropped = (jax.nn.softmax(logits, axis=-1) < floor) & (logits < best)
    return jnp.where(dropped, -jnp.inf, logits)


def surprise(log_probs: jax.Array) -> jax.Array:
    """`-p log p`, 0 where p is 0."""
    return jnp.where(jnp.isneginf(log_probs), 0, -jnp.exp(log_probs) * log_probs)


def entropy(log_probs: jax.Array) -> jax.Array:
    """`[rows]`, in nats."""
    return jnp.sum(surprise(log_probs), axis=-1)


def inside_unit_interval(name: str, value: float | jax.Array) -> None:
    """Refuse a number outside (0, 1).

    Raises:
        ValueError: naming the transform.
    """
    if isinstance(value, (int, float)) and not 0 < value < 1:
        raise ValueError(f"{name}({value}) must lie strictly between 0 and 1; leave it out to keep all")
