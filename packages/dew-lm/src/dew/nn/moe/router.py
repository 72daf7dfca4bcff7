"""A router: its kernel, its experts' biases, and what it reports.

Dimensions: B rows, S tokens, D model width, E experts, K of them chosen.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float

from dew.nn.dense import fan_in_normal
from dew.nn.moe.choice import SMALLEST_SUM, Choice, best_experts, scores_of, weights_of
from dew.nn.moe.config import Mixture
from dew.nn.moe.routes import ROUTES, RouterRows, follow
from dew.nn.sharding import named_axes

ROUTING = "routing"
"""The collection a router sows its `RoutingLoad` into, when it is mutable."""
STATE = "moe"
"""The collection of the experts' biases."""


@struct.dataclass
class RoutingLoad:
    """What a router did with each row: sums over its counted tokens, which add over rows.

    Attributes:
        counts: [B, E] int32, tokens sent to each expert.
        scores: [B, E] the sums of the scores' shares, which make 1 a token: `s / sum(s)`.
        log_partition: [B] the sums of the squared log partition of the router's logits.
        positions: [B] int32, the tokens counted.
    """

    counts: jax.Array
    scores: jax.Array
    log_partition: jax.Array
    positions: jax.Array


class Router(nn.Module):
    """Scores the experts for each token in float32 or wider and chooses.

    Attributes:
        mixture: sizes and law.
        param_dtype: stores.
        precision: of the product.
    """

    mixture: Mixture
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"], rows: RouterRows | None = None) -> Choice:
        """Choose.

        Args:
            x: [B, S, D].
            rows: which tokens are reported, and the experts [B, S, K] to replay; None reports all and
                replays none.
        """
        rows = RouterRows() if rows is None else rows
        logits = self._logits(x)
        scores = scores_of(logits, self.mixture.scores)
        own = best_experts(logits, scores, self._choice_bias(), self.mixture)
        chosen, wrong = follow(rows.routes, own, self.mixture.num_experts)
        weights = weights_of(logits, scores, chosen, self.mixture)
        if wrong is not None:
            weights = jnp.where(wrong[..., None], jnp.nan, weights)
        if not self.is_initializing():
            self.sow(ROUTES, "experts", chosen, reduce_fn=lambda _, last: last, init_fn=lambda: chosen)
            self._report(logits, scores, chosen, rows.counted)
        return Choice(chosen, weights.astype(x.dtype))

    def _logits(self, x: jax.Array) -> jax.Array:
        experts = self.mixture.num_experts
        kernel: jax.Array = self.param(
            "kernel", named_axes(fan_in_normal(), "embed", None), (x.shape[-1], experts), self.param_dtype
        )
        wide = jnp.promote_types(x.dtype, jnp.float32)
        logits = jnp.dot(x.astype(wide), kernel.astype(wide), precision=self.precision)
        if not self.mixture.router_bias:
            return logits
        zeros = named_axes(nn.initializers.zeros_init(), None)
        bias: jax.Array = self.param("bias", zeros, (experts,), self.param_dtype)
        return logits + bias.astype(wide)

    def _choice_bias(self) -> jax.Array | None:
        if not self.mixture.bias:
            return None
        held = self.variable(STATE, "bias", jnp.zeros, (self.mixture.num_experts,), jnp.float32)
        return held.value

    def _report(
        self, logits: jax.Array, scores: jax.Array, chosen: jax.Array, counted: Bool[Array, "B S"] | None
    ) -> None:
        if not self.is_mutable_collection(ROUTING):
            return
        counts = jnp.ones(chosen.shape[:2], bool) if counted is None else counted
        of_each = (chosen[..., None] == jnp.arange(self.mixture.num_experts)) & counts[..., None, None]
        shares = scores
        if self.mixture.scores == "sigmoid":
            shares = scores / (jnp.sum(scores, axis=-1, keepdims=True) + SMALLEST_SUM)
        squared = jnp.square(jax.nn.logsumexp(logits, axis=-1))
        load = RoutingLoad(
            counts=jnp.sum(of_each, axis=(1, 2), dtype=jnp.int32),
            scores=jnp.sum(jnp.where(counts[..., None], shares, 0), axis=1),
            log_partition=jnp.sum(jnp.where(counts, squared, 0), axis=1),
            positions=jnp.sum(counts, axis=1, dtype=jnp.int32),
        )
        self.sow(ROUTING, "load", load, reduce_fn=lambda _, last: last, init_fn=lambda: load)
