"""Multi-head latent attention, dense or over the keys that a lightning indexer selects; see `MLA`.

Dimensions: B rows, T queries, S keys, H heads, E model width, Q and R widths of the latent vectors of queries
and of keys and values, N and D widths of a head's still and turning part, V of its value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention.masks import allowed_keys
from dew.nn.backbones.causal_transformer.attending import Attending
from dew.nn.backbones.causal_transformer.cache import LayerCache, capacity_of, write
from dew.nn.backbones.causal_transformer.indexer import (
    INDEXER,
    Index,
    Indexer,
    attention_share,
    divergence,
    index_scores,
    selected_keys,
)
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.backbones.causal_transformer.spec import Places, Table
from dew.nn.dense import Dense, fan_in_normal
from dew.nn.norms import RMSNorm
from dew.nn.rotary import rotate
from dew.nn.sharding import unboxed
from dew.nn.tokens import split_tokens


class Parts(NamedTuple):
    """What attention reads of tokens.

    Attributes:
        query: [B, T, H, N + D], turned.
        latent: [B, T, R], of keys and values.
        turned: [B, T, D], the part of a key that all heads share.
        indexed: of the indexer, or None where nothing reads it.
    """

    query: jax.Array
    latent: jax.Array
    turned: jax.Array
    indexed: Index | None


class LatentAttention(Attending):
    """Latent attention over the tokens given or over a cache of latent vectors.

    `spec.bias.qkv` is for the projections to latent vectors.
    """

    @property
    def mixer(self) -> MLA:
        """The sizes."""
        assert self.spec.mixer is not None, "a layer without them has plain attention"
        return self.spec.mixer

    def setup(self) -> None:
        spec, mixer = self.spec, self.mixer
        numerics: dict[str, Any] = {"dtype": spec.dtype, "param_dtype": spec.param_dtype}
        project = partial(Dense, **numerics, precision=spec.precision)
        norm = partial(RMSNorm, epsilon=mixer.norm_eps, **numerics)
        queries = spec.num_heads * mixer.head_width
        if mixer.q_lora_rank is None:
            self.q_proj = project(queries, ("embed", "heads"))
        else:
            self.q_a_proj = project(mixer.q_lora_rank, ("embed", "latent"), bias=spec.bias.qkv)
            self.q_a_layernorm = norm()
            self.q_b_proj = project(queries, ("latent", "heads"))
        compressed = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        self.kv_a_proj_with_mqa = project(compressed, ("embed", "latent"), bias=spec.bias.qkv)
        self.kv_a_layernorm = norm()
        expanded = spec.num_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        self.kv_b_proj = project(expanded, ("latent", "heads"))
        self.o_proj = project(
            spec.hidden_size,
            ("heads", "embed"),
            kernel_init=fan_in_normal(spec.output_gain),
            bias=spec.bias.output,
        )
        if mixer.index_n_heads is not None:
            self.indexer = Indexer(mixer, **numerics, precision=spec.precision)

    def __call__(
        self, x: Float[Array, "B T E"], places: Places, segment_ids: Int[Array, "B T"] | None
    ) -> Float[Array, "B T E"]:
        parts, apart = self._project(x, places), self.apart(places, segment_ids)
        key, value = self._expanded(parts.latent, parts.turned)
        self.report(parts.query, key, segment_ids, apart)
        chosen = None
        if parts.indexed is not None:
            length = x.shape[1]
            allowed = allowed_keys(length, length, causal=self.spec.causal, window=self.plan.reach, **apart)
            scores = index_scores(parts.indexed, parts.indexed.key, precision=self.spec.precision)
            seen = selected_keys(scores, allowed, self.mixer.index_topk)
            self._compare(parts.query, key, scores, seen)
            chosen = None if self.mixer.index_topk is None else seen[:, None]
        mixed = self.attention()(parts.query, key, value, mask=chosen, **apart)
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
        parts = self._project(x, places)
        new = {"latent": parts.latent, "turned": parts.turned}
        if parts.indexed is not None:
            new["index"] = parts.indexed.key
        cache = write(cache, new, positions=positions, valid=valid)
        capacity = capacity_of(cache)
        slots = self.cached(places, positions, capacity)
        held = {name: kept.astype(x.dtype) for name, kept in cache.items()}
        chosen = None
        if parts.indexed is not None:
            allowed = allowed_keys(
                x.shape[1], capacity, causal=self.spec.causal, window=self.plan.reach, **slots
            )
            scores = index_scores(parts.indexed, held["index"], precision=self.spec.precision)
            chosen = selected_keys(scores, allowed, self.mixer.index_topk)[:, None]
        attend = partial(self.attention(), mask=chosen, **slots)
        mix = self._absorbed if self._absorbs(x.shape[1], capacity) else self._unfolded
        return self.output(mix(attend, parts.query, held["latent"], held["turned"])), cache

    def _project(self, x: jax.Array, places: Places) -> Parts:
        mixer, still = self.mixer, self.mixer.qk_nope_head_dim
        residual = None
        if mixer.q_lora_rank is None:
            query = self.q_proj(x)
        else:
            residual = self.q_a_layernorm(self.q_a_proj(x))
            query = self.q_b_proj(residual)
        query = split_tokens(query).reshape(*x.shape[:-1], -1, mixer.head_width)
        latent, turned = jnp.split(split_tokens(self.kv_a_proj_with_mqa(x)), [mixer.kv_lora_rank], axis=-1)
        latent = self.kv_a_layernorm(latent)
        table = places.turn(self.plan)
        if table is not None:
            turn = partial(rotate, pairs=self.spec.pairs)
            query = jnp.concatenate([query[..., :still], turn(query[..., still:], *table)], axis=-1)
            turned = turn(turned[:, :, None], *table)[:, :, 0]
        return Parts(query, latent, turned, self._index(x, residual, table))

    def _index(self, x: jax.Array, residual: jax.Array | None, table: Table | None) -> Index | None:
        """The indexer's part, cut off from the rest's gradient, where something reads it."""
        read = self.mixer.index_topk is not None or self.is_mutable_collection(INDEXER)
        if residual is None or self.mixer.index_n_heads is None or not (read or self.is_initializing()):
            return None
        return self.indexer(jax.lax.stop_gradient(x), jax.lax.stop_gradient(residual), table)

    def _expanded(self, latent: jax.Array, turned: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys [B, S, H, N + D] and values [B, S, H, V] of every head."""
        still = self.mixer.qk_nope_head_dim
        both = split_tokens(self.kv_b_proj(latent))
        both = both.reshape(*latent.shape[:-1], self.spec.num_heads, still + self.mixer.v_head_dim)
        shared = jnp.broadcast_to(turned[:, :, None], (*both.shape[:-1], turned.shape[-1]))
        return jnp.concatenate([both[..., :still], shared], axis=-1), both[..., still:]

    def _absorbs(self, queries: int, slots: int) -> bool:
        """Whether attending to latent vectors takes fewer products than expanding every slot of a cache.

        An adapter's factors are no part of the kernel, so an adapted projection is always called.
        """
        if set(self.kv_b_proj.variables["params"]) != {"kernel"}:
            return False
        mixer = self.mixer
        expansion = mixer.kv_lora_rank * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        wider = 2 * mixer.kv_lora_rank - mixer.qk_nope_head_dim - mixer.v_head_dim
        return queries * (expansion + slots * wider) < slots * expansion

    def _absorbed(
        self, attend: Callable[..., jax.Array], query: jax.Array, latent: jax.Array, turned: jax.Array
    ) -> jax.Array:
        """Attention to latent vectors, with the expansion moved to queries and results (section 2.1.2)."""
        still, heads, precision = self.mixer.qk_nope_head_dim, self.spec.num_heads, self.spec.precision
        kernel = unboxed(self.kv_b_proj.variables["params"]["kernel"]).astype(query.dtype)
        kernel = kernel.reshape(self.mixer.kv_lora_rank, heads, -1)
        to_latent, to_value = kernel[..., :still], kernel[..., still:]
        asked = jnp.einsum("bthn,rhn->bthr", query[..., :still], to_latent, precision=precision)
        asked = jnp.concatenate([asked, query[..., still:]], axis=-1)
        key = jnp.concatenate([latent, turned], axis=-1)[:, :, None]
        mixed = attend(asked, key, latent[:, :, None])
        return jnp.einsum("bthr,rhv->bthv", mixed, to_value, precision=precision)

    def _unfolded(
        self, attend: Callable[..., jax.Array], query: jax.Array, latent: jax.Array, turned: jax.Array
    ) -> jax.Array:
        """Attention to the keys and values that the latent vectors expand to."""
        return attend(query, *self._expanded(latent, turned))

    def _compare(self, query: jax.Array, key: jax.Array, scores: jax.Array, seen: jax.Array) -> None:
        if not self.is_mutable_collection(INDEXER) or self.is_initializing():
            return
        share = attention_share(
            query,
            key,
            seen,
            scale=self.plan.scale,
            softcap=self.spec.softcap,
            precision=self.spec.precision,
        )
        found = divergence(share, scores, seen)
        self.sow(INDEXER, "divergence", found, reduce_fn=lambda _, last: last, init_fn=lambda: found)
