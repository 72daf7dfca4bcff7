"""One pre-norm decoder layer: grouped-query self-attention, then a feed-forward block.

Dimensions: B rows, T queries, C cache slots, H query heads, K key heads, D head width, E model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention import AttentionImpl, logit_maxima, scaled_dot_product_attention
from dew.nn.backbones.causal_transformer.cache import LayerCache, write
from dew.nn.dense import Dense, fan_in_normal
from dew.nn.mlp import Activation, FeedForward
from dew.nn.moe.config import Mixture
from dew.nn.moe.layer import MixtureOfExperts
from dew.nn.moe.routes import RouterRows
from dew.nn.norms import RMSNorm
from dew.nn.rotary import rotate
from dew.nn.tokens import split_tokens

QK = "qk"
"""The collection an attention layer sows `max_logits` [B, H] into, when it is mutable."""

type Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines of the rotary angles, [B, T, D / 2] or [1, T, D / 2] each."""


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What the layers of a decoder share; `CausalTransformer` documents the fields."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    activation: Activation
    norm_eps: float
    qk_norm: bool
    causal: bool
    softcap: float | None
    output_gain: float
    dtype: Dtype
    param_dtype: Dtype
    precision: jax.lax.PrecisionLike
    attention_impl: AttentionImpl | None


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions, over the tokens given or over a cache.

    Attributes:
        spec: sizes and numerics.
        window: a query sees itself and the `window - 1` tokens before it; None for all before it.
    """

    spec: LayerSpec
    window: int | None = None

    def setup(self) -> None:
        spec = self.spec
        project = partial(Dense, dtype=spec.dtype, param_dtype=spec.param_dtype, precision=spec.precision)
        self.q_proj = project(spec.num_heads * spec.head_dim, ("embed", "heads"))
        self.k_proj = project(spec.num_kv_heads * spec.head_dim, ("embed", "kv_heads"))
        self.v_proj = project(spec.num_kv_heads * spec.head_dim, ("embed", "kv_heads"))
        self.o_proj = project(
            spec.hidden_size, ("heads", "embed"), kernel_init=fan_in_normal(spec.output_gain)
        )
        if spec.qk_norm:
            norm = partial(RMSNorm, spec.norm_eps, spec.dtype, spec.param_dtype, axis="head_dim")
            self.q_norm = norm()
            self.k_norm = norm()

    def __call__(
        self, x: Float[Array, "B T E"], angles: Angles, segment_ids: Int[Array, "B T"] | None
    ) -> Float[Array, "B T E"]:
        query, key, value = self._project(x, angles)
        self._report(query, key, segment_ids)
        mixed = self._attention()(
            query, key, value, query_segment_ids=segment_ids, key_segment_ids=segment_ids
        )
        return self._output(mixed)

    def decode(
        self,
        x: Float[Array, "B T E"],
        angles: Angles,
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """Write the valid tokens, then let every query see the slots up to its position."""
        query, key, value = self._project(x, angles)
        cache = write(cache, key=key, value=value, positions=positions, valid=valid)
        rows, capacity = cache["key"].shape[:2]
        slots = jnp.broadcast_to(jnp.arange(capacity), (rows, capacity))
        mixed = self._attention()(
            query,
            cache["key"].astype(query.dtype),
            cache["value"].astype(query.dtype),
            query_positions=positions,
            key_positions=slots,
        )
        return self._output(mixed), cache

    def _project(self, x: jax.Array, angles: Angles) -> tuple[jax.Array, jax.Array, jax.Array]:
        query, key, value = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.spec.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        return rotate(query, *angles), rotate(key, *angles), value

    def _report(self, query: jax.Array, key: jax.Array, segment_ids: jax.Array | None) -> None:
        if not self.is_mutable_collection(QK) or self.is_initializing():
            return
        if segment_ids is not None:
            # Padding, segment 0, is nobody's query: zeros stand below whatever QK-Clip would act on.
            query = jnp.where(segment_ids[:, :, None, None] == 0, 0, query)
        maxima = logit_maxima(
            query,
            key,
            causal=self.spec.causal,
            window=self.window,
            segment_ids=segment_ids,
            precision=self.spec.precision,
        )
        self.sow(QK, "max_logits", maxima)

    def _split(self, x: jax.Array) -> jax.Array:
        return split_tokens(x).reshape(*x.shape[:-1], -1, self.spec.head_dim)

    def _attention(self) -> Callable[..., jax.Array]:
        return partial(
            scaled_dot_product_attention,
            causal=self.spec.causal,
            window=self.window,
            softcap=self.spec.softcap,
            implementation=self.spec.attention_impl,
            precision=self.spec.precision,
        )

    def _output(self, mixed: jax.Array) -> jax.Array:
        return split_tokens(self.o_proj(split_tokens(mixed.reshape(*mixed.shape[:-2], -1))))


class DecoderLayer(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`.

    Attributes:
        spec: sizes and numerics.
        window: of the attention, or None.
        mixture: of experts in place of the one feed-forward block, or None.
    """

    spec: LayerSpec
    window: int | None = None
    mixture: Mixture | None = None

    def setup(self) -> None:
        spec = self.spec
        norm = partial(RMSNorm, spec.norm_eps, spec.dtype, spec.param_dtype)
        self.input_layernorm = norm()
        self.self_attn = SelfAttention(spec, self.window)
        self.post_attention_layernorm = norm()
        numerics = spec.activation, spec.output_gain, spec.dtype, spec.param_dtype, spec.precision
        if self.mixture is None:
            self.mlp = FeedForward(spec.intermediate_size, *numerics)
        else:
            width = self.mixture.intermediate_size or spec.intermediate_size
            self.mlp = MixtureOfExperts(self.mixture, width, *numerics)

    def __call__(
        self,
        x: Float[Array, "B T E"],
        angles: Angles,
        segment_ids: Int[Array, "B T"] | None = None,
        routing: RouterRows | None = None,
    ) -> Float[Array, "B T E"]:
        x = x + self.self_attn(split_tokens(self.input_layernorm(x)), angles, segment_ids)
        return x + self._feed_forward(x, routing)

    def decode(
        self,
        x: Float[Array, "B T E"],
        angles: Angles,
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """The layer over new tokens, with the earlier ones in `cache`."""
        mixed, cache = self.self_attn.decode(self.input_layernorm(x), angles, positions, valid, cache)
        x = x + mixed
        return x + self._feed_forward(x), cache

    def _feed_forward(self, x: jax.Array, routing: RouterRows | None = None) -> jax.Array:
        x = split_tokens(self.post_attention_layernorm(x))
        told = () if self.mixture is None else (routing,)
        return split_tokens(self.mlp(x, *told))
