"""The lightning indexer of sparse attention (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

Dimensions: B rows, T queries, S keys, H attention heads, J index heads, D width, E model width, Q width of
the queries' latent vector.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from dew.nn.attention.reference import FORBIDDEN, masked_softmax
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm
from dew.nn.rotary import rotate
from dew.nn.tokens import split_tokens

INDEXER = "indexer"
"""The collection an attention layer with an indexer sows `divergence` [B, T] into, when it is mutable."""
WHOLE = 2**24
"""Scores of all heads up to this many are formed at once; more, head by head."""


class Index(NamedTuple):
    """What the indexer makes of tokens.

    Attributes:
        query: [B, T, J, D].
        key: [B, T, D], one for all heads.
        weights: [B, T, J], float32 or wider, with both scales `J^-1/2` and `D^-1/2` in them.
    """

    query: jax.Array
    key: jax.Array
    weights: jax.Array


class Indexer(nn.Module):
    """Index queries, keys and head weights of tokens.

    Attributes:
        mixer: sizes.
        dtype: computes; the head weights and all scores are float32 or wider.
        param_dtype: stores.
        precision: of every product.
    """

    mixer: MLA
    dtype: jax.typing.DTypeLike = jnp.float32
    param_dtype: jax.typing.DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T E"],
        residual: Float[Array, "B T Q"],
        table: tuple[jax.Array, jax.Array] | None,
    ) -> Index:
        """Project.

        Args:
            x: the tokens.
            residual: the queries' latent vectors.
            table: cosines and sines that queries and keys turn by; None turns nothing.
        """
        heads, width = self.mixer.index_n_heads, self.mixer.index_head_dim
        assert heads is not None and width is not None, "made for a mixer with an indexer alone"
        project = partial(Dense, param_dtype=self.param_dtype, precision=self.precision)
        numerics: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        flat = project(heads * width, ("latent", "index_heads"), dtype=self.dtype, name="wq_b")(residual)
        query = split_tokens(flat).reshape(*flat.shape[:-1], heads, width)
        key = project(width, ("embed", "head_dim"), dtype=self.dtype, name="wk")(x)
        key = split_tokens(LayerNorm(epsilon=1e-6, **numerics, name="k_norm")(key))
        if table is not None:
            query, key = rotate(query, *table), rotate(key[:, :, None], *table)[:, :, 0]
        wide = jnp.promote_types(x.dtype, jnp.float32)
        weights = project(heads, ("embed", "index_heads"), dtype=wide, name="weights_proj")(x)
        return Index(query, key, split_tokens(weights) * (heads * width) ** -0.5)


def index_scores(
    index: Index, keys: Float[Array, "B S D"], *, precision: jax.lax.PrecisionLike = None
) -> Float[Array, "B T S"]:
    """`I_ts = sum over j of w_tj relu(q_tj k_s)`, in float32 or wider.

    Args:
        index: of the queries.
        keys: index keys.
        precision: of the products.
    """
    wide = jnp.promote_types(index.query.dtype, jnp.float32)
    query, keys = index.query.astype(wide), keys.astype(wide)
    rows, queries, heads, _ = query.shape
    if rows * heads * queries * keys.shape[1] <= WHOLE:
        products = jnp.einsum("btjd,bsd->btjs", query, keys, precision=precision)
        return jnp.einsum("btj,btjs->bts", index.weights, jax.nn.relu(products), precision=precision)

    def add(total: jax.Array, head: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        products = jnp.einsum("btd,bsd->bts", head[0], keys, precision=precision)
        return total + head[1][..., None] * jax.nn.relu(products), None

    start = jnp.zeros((rows, queries, keys.shape[1]), wide)
    each = (query.swapaxes(0, 2).swapaxes(1, 2), jnp.moveaxis(index.weights, 2, 0))
    return jax.lax.scan(jax.checkpoint(add), start, each)[0]


def selected_keys(
    scores: Float[Array, "B T S"], allowed: Bool[Array, "..."] | None, count: int | None
) -> Bool[Array, "B T S"]:
    """The keys that queries see: of the allowed ones those of largest score; of equal ones the earlier.

    Args:
        scores: of the indexer.
        allowed: [B, 1, T, S] or [1, 1, T, S], as `dew.nn.attention.masks.allowed_keys` says it; None for all.
        count: at most so many a query; None for all that are allowed.
    """
    inside = jnp.ones(scores.shape, bool) if allowed is None else allowed[:, 0]
    inside = jnp.broadcast_to(inside, scores.shape)
    if count is None or count >= scores.shape[-1]:
        return inside
    ranked = jnp.where(inside, jax.lax.stop_gradient(scores), -jnp.inf)
    best = jax.lax.top_k(ranked, count)[1]
    chosen = jnp.put_along_axis(jnp.zeros(ranked.shape, bool), best, True, axis=-1, inplace=False)
    return chosen & inside


def attention_share(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S H D"],
    seen: Bool[Array, "B T S"],
    *,
    scale: float,
    softcap: float | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B T S"]:
    """What the heads together pay to each key: the mean over heads of `softmax(scale q k)` among seen keys.

    No gradient passes. A query that sees nothing pays nothing.
    """
    query, key = jax.lax.stop_gradient((query, key))
    wide = jnp.promote_types(query.dtype, jnp.float32)

    def add(total: jax.Array, head: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        scores = scale * jnp.einsum("btd,bsd->bts", *head, precision=precision, preferred_element_type=wide)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        return total + masked_softmax(scores, seen), None

    start = jnp.zeros(seen.shape, wide)
    total, _ = jax.lax.scan(add, start, (jnp.moveaxis(query, 2, 0), jnp.moveaxis(key, 2, 0)))
    return total / query.shape[2]


def divergence(
    share: Float[Array, "B T S"], scores: Float[Array, "B T S"], seen: Bool[Array, "B T S"]
) -> Float[Array, "B T"]:
    """`KL(share || softmax(scores))` of every query over the keys it sees (section 2.1.1, equations 3 and 4).

    Args:
        share: sums to 1 over the seen keys.
        scores: of the indexer.
        seen: all allowed keys, or the selected ones.
    """
    logs = jax.nn.log_softmax(jnp.where(seen, scores, FORBIDDEN), axis=-1)
    terms = jax.scipy.special.xlogy(share, share) - share * jnp.where(seen, logs, 0)
    return jnp.sum(terms, axis=-1)
