"""One decoder layer: self-attention and a feed-forward block, around which norms stand.

Dimensions: B rows, T queries, C cache slots, H query heads, K key heads, D head width, E model width.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from dew.nn.backbones.causal_transformer.attending import Attending
from dew.nn.backbones.causal_transformer.cache import LayerCache, by_slot, capacity_of, write
from dew.nn.backbones.causal_transformer.config import LayerPlan
from dew.nn.backbones.causal_transformer.latent import LatentAttention
from dew.nn.backbones.causal_transformer.spec import LayerSpec, Places
from dew.nn.dense import Dense, fan_in_normal
from dew.nn.mlp import FeedForward
from dew.nn.moe.layer import MixtureOfExperts
from dew.nn.moe.routes import RouterRows
from dew.nn.norms import rms_normalize
from dew.nn.rotary import rotate
from dew.nn.sharding import named_axes
from dew.nn.tokens import split_tokens


class SelfAttention(Attending):
    """Grouped-query attention over the tokens given or over a cache."""

    def setup(self) -> None:
        spec = self.spec
        project = partial(Dense, dtype=spec.dtype, param_dtype=spec.param_dtype, precision=spec.precision)
        width, key_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = project(width, ("embed", "heads"), bias=spec.bias.qkv)
        self.k_proj = project(key_width, ("embed", "kv_heads"), bias=spec.bias.qkv)
        self.v_proj = project(key_width, ("embed", "kv_heads"), bias=spec.bias.qkv)
        self.o_proj = project(
            spec.hidden_size,
            ("heads", "embed"),
            kernel_init=fan_in_normal(spec.output_gain),
            bias=spec.bias.output,
        )
        if spec.qk_norm in (True, "width"):
            whole = spec.qk_norm == "width"
            self.q_norm = spec.make_norm("heads" if whole else "head_dim")
            self.k_norm = spec.make_norm("kv_heads" if whole else "head_dim")
        if spec.sinks:
            zeros = named_axes(nn.initializers.zeros_init(), "heads")
            self.sinks = self.param("sinks", zeros, (spec.num_heads,), spec.param_dtype)

    def __call__(
        self, x: Float[Array, "B T E"], places: Places, segment_ids: Int[Array, "B T"] | None
    ) -> Float[Array, "B T E"]:
        query, key, value = self._project(x, places)
        apart = self.apart(places, segment_ids)
        self.report(query, key, segment_ids, apart)
        mixed = self.attention(self.sinks if self.spec.sinks else None)(query, key, value, **apart)
        return self.output(mixed)

    def decode(
        self,
        x: Float[Array, "B T E"],
        places: Places,
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """Write the valid tokens, then let every query see the slots up to its position."""
        query, key, value = self._project(x, places)
        cache = write(cache, {"key": key, "value": value}, positions=positions, valid=valid)
        mixed = self.attention(self.sinks if self.spec.sinks else None)(
            query,
            by_slot(cache["key"]).astype(query.dtype),
            by_slot(cache["value"]).astype(query.dtype),
            **self.cached(places, positions, capacity_of(cache)),
        )
        return self.output(mixed), cache

    def _project(self, x: jax.Array, places: Places) -> tuple[jax.Array, jax.Array, jax.Array]:
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.spec.qk_norm == "width":
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = map(self._split, (query, key, value))
        if self.spec.qk_norm is True:
            query, key = self.q_norm(query), self.k_norm(key)
        table = places.turn(self.plan)
        if table is None:
            return self._warmed(query, places.positions), key, value
        query, key = (rotate(each, *table, pairs=self.spec.pairs) for each in (query, key))
        if self.spec.qk_norm == "l2":
            query, key = (rms_normalize(each, self.spec.norm_eps).astype(each.dtype) for each in (query, key))
        return query, key, value

    def _warmed(self, query: jax.Array, positions: jax.Array) -> jax.Array:
        """The queries times the temperature of their positions."""
        law = self.spec.temperature
        if law is None:
            return query
        wide = jnp.promote_types(query.dtype, jnp.float32)
        rises = jnp.log1p(((positions + 1) // law.every).astype(wide))
        return (query * (1 + law.strength * rises)[:, :, None, None]).astype(query.dtype)

    def _split(self, x: jax.Array) -> jax.Array:
        return split_tokens(x).reshape(*x.shape[:-1], -1, self.spec.head_dim)


class DecoderLayer(nn.Module):
    """Attention and feed-forward added to the stream, in the order and with the norms of `spec.block`.

    Attributes:
        spec: sizes and numerics.
        plan: what is this layer's own.
    """

    spec: LayerSpec
    plan: LayerPlan

    def setup(self) -> None:
        spec = self.spec
        if spec.block != "post":
            self.input_layernorm = spec.make_norm()
        self.self_attn = (SelfAttention if spec.mixer is None else LatentAttention)(spec, self.plan)
        if spec.block != "parallel_shared":
            self.post_attention_layernorm = spec.make_norm()
        if spec.block == "sandwich":
            self.pre_feedforward_layernorm = spec.make_norm()
        if spec.block in ("post", "sandwich"):
            self.post_feedforward_layernorm = spec.make_norm()
        numerics = spec.activation, spec.output_gain, spec.dtype, spec.param_dtype, spec.precision
        if spec.mixture is not None and self.plan.experts:
            width = spec.mixture.intermediate_size or spec.intermediate_size
            self.mlp = MixtureOfExperts(spec.mixture, width, *numerics)
        else:
            self.mlp = FeedForward(spec.intermediate_size, *numerics, bias=spec.bias.mlp)

    def __call__(
        self,
        x: Float[Array, "B T E"],
        places: Places,
        segment_ids: Int[Array, "B T"] | None = None,
        routing: RouterRows | None = None,
    ) -> Float[Array, "B T E"]:
        return self._added(x, self.self_attn(split_tokens(self._read(x)), places, segment_ids), routing)

    def decode(
        self,
        x: Float[Array, "B T E"],
        places: Places,
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """The layer over new tokens, with the earlier ones in `cache`."""
        mixed, cache = self.self_attn.decode(self._read(x), places, positions, valid, cache)
        return self._added(x, mixed), cache

    def _read(self, x: jax.Array) -> jax.Array:
        """What attention reads of the stream."""
        return x if self.spec.block == "post" else self.input_layernorm(x)

    def _added(self, x: jax.Array, mixed: jax.Array, routing: RouterRows | None = None) -> jax.Array:
        """The stream with what attention mixed, and with what the feed-forward block makes of it."""
        feed = partial(self._feed_forward, routing=routing)
        match self.spec.block:
            case "pre":
                x = x + self._scaled(mixed)
                return x + self._scaled(feed(self.post_attention_layernorm(x)))
            case "post":
                x = x + self._scaled(self.post_attention_layernorm(mixed))
                return x + self._scaled(self.post_feedforward_layernorm(feed(x)))
            case "sandwich":
                x = x + self._scaled(self.post_attention_layernorm(mixed))
                made = feed(self.pre_feedforward_layernorm(x))
                return x + self._scaled(self.post_feedforward_layernorm(made))
            case "parallel":
                made = feed(self.post_attention_layernorm(x))
            case "parallel_shared":
                made = feed(self._read(x))
        return x + self._scaled(mixed) + self._scaled(made)

    def _scaled(self, added: jax.Array) -> jax.Array:
        if self.spec.residual == 1.0:
            return added
        wide = added.astype(jnp.promote_types(added.dtype, jnp.float32))
        return (wide * self.spec.residual).astype(added.dtype)

    def _feed_forward(self, x: jax.Array, routing: RouterRows | None) -> jax.Array:
        x = split_tokens(x)
        return split_tokens(self.mlp(x, routing) if isinstance(self.mlp, MixtureOfExperts) else self.mlp(x))
