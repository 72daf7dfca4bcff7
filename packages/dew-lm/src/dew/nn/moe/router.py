"""Which experts a token goes to, and with what weights (arXiv 2101.03961, section 2).

Dimensions: B rows, S tokens, D model width, E experts, K of them chosen. With scores s = softmax(x W), the
experts are the K largest of s + bias, and their weights are s, scaled to sum to 1 where the mixture says so.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.dense import fan_in_normal
from dew.nn.moe.config import Mixture
from dew.nn.sharding import named_axes

ROUTING = "routing"
"""The collection a router sows its `RoutingLoad` into, when it is mutable."""
STATE = "moe"
"""The collection of the experts' biases."""


class Choice(NamedTuple):
    """Experts and weights of every token, [B, S, K] each."""

    experts: jax.Array
    weights: jax.Array


@struct.dataclass
class RoutingLoad:
    """What a router did with each row: sums over its tokens, which add over rows.

    Attributes:
        counts: [B, E] int32, tokens sent to each expert.
        scores: [B, E] the scores' sums.
        log_partition: [B] the sums of the squared log partition of the router's logits.
    """

    counts: jax.Array
    scores: jax.Array
    log_partition: jax.Array


class Router(nn.Module):
    """Scores the experts for each token in float32 or wider and chooses.

    Attributes:
        mixture: sizes.
        param_dtype: stores.
        precision: of the product.
    """

    mixture: Mixture
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"]) -> Choice:
        experts = self.mixture.num_experts
        kernel: jax.Array = self.param(
            "kernel", named_axes(fan_in_normal(), "embed", None), (x.shape[-1], experts), self.param_dtype
        )
        wide = jnp.promote_types(x.dtype, jnp.float32)
        logits = jnp.dot(x.astype(wide), kernel.astype(wide), precision=self.precision)
        scores = jax.nn.softmax(logits, axis=-1)
        ranked = scores
        if self.mixture.bias:
            bias = self.variable(STATE, "bias", jnp.zeros, (experts,), jnp.float32)
            ranked = scores + bias.value
        _, chosen = jax.lax.top_k(jax.lax.stop_gradient(ranked), self.mixture.top_k)
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if self.mixture.normalize:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        if not self.is_initializing():
            self._report(logits, scores, chosen)
        return Choice(chosen, weights.astype(x.dtype))

    def _report(self, logits: jax.Array, scores: jax.Array, chosen: jax.Array) -> None:
        of_each = chosen[..., None] == jnp.arange(self.mixture.num_experts)
        load = RoutingLoad(
            counts=jnp.sum(of_each, axis=(1, 2), dtype=jnp.int32),
            scores=jnp.sum(scores, axis=1),
            log_partition=jnp.sum(jnp.square(jax.nn.logsumexp(logits, axis=-1)), axis=1),
        )
        self.sow(ROUTING, "load", load, reduce_fn=lambda _, last: last, init_fn=lambda: load)
