"""What the mixers of a layer share: the call of attention, what it reports, and the way back to the stream.

Dimensions: B rows, T queries, H query heads, K key heads, D width of a query and a key, V of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from dew.nn.attention import logit_maxima, scaled_dot_product_attention
from dew.nn.backbones.causal_transformer.chunks import chunk_ids
from dew.nn.backbones.causal_transformer.config import LayerPlan
from dew.nn.backbones.causal_transformer.spec import QK, LayerSpec, Places
from dew.nn.tokens import split_tokens


class Attending(nn.Module):
    """A mixer of tokens by attention; a subclass makes the projections, `o_proj` among them.

    Attributes:
        spec: sizes and numerics.
        plan: what is this layer's own.
    """

    spec: LayerSpec
    plan: LayerPlan

    def attention(self, sinks: Float[Array, " H"] | None = None) -> Callable[..., jax.Array]:
        """Attention with the layer's own settings, of a query, a key, a value and what restricts them."""
        return partial(
            scaled_dot_product_attention,
            causal=self.spec.causal,
            window=self.plan.reach,
            scale=self.plan.scale,
            softcap=self.spec.softcap,
            sinks=sinks,
            implementation=self.spec.attention_impl,
            precision=self.spec.precision,
        )

    def apart(self, places: Places, segment_ids: Int[Array, "B T"] | None) -> dict[str, jax.Array]:
        """What keeps the tokens of a whole row apart, as attention takes it: documents, and their chunks."""
        if self.plan.chunk is not None:
            segment_ids = chunk_ids(places.positions, self.plan.chunk, segment_ids)
        if segment_ids is None:
            return {}
        return {"query_segment_ids": segment_ids, "key_segment_ids": segment_ids}

    def cached(
        self, places: Places, positions: Int[Array, "B T"], capacity: int
    ) -> dict[str, Int[Array, "..."]]:
        """What says which slots of a cache new tokens see, as attention takes it: positions, and chunks.

        Args:
            places: of the new tokens in their documents.
            positions: of the new tokens in the cache. A prediction depth's begins at a later token, so that
                the two differ by a constant.
            capacity: slots.
        """
        slots = jnp.broadcast_to(jnp.arange(capacity), (positions.shape[0], capacity))
        seen = {"query_positions": positions, "key_positions": slots}
        if self.plan.chunk is None:
            return seen
        held = slots + (places.positions - positions)[:, :1]
        return seen | {
            "query_segment_ids": chunk_ids(places.positions, self.plan.chunk),
            "key_segment_ids": chunk_ids(held, self.plan.chunk),
        }

    def report(
        self,
        query: Float[Array, "B T H D"],
        key: Float[Array, "B T K D"],
        segment_ids: Int[Array, "B T"] | None,
        apart: Mapping[str, jax.Array],
    ) -> None:
        """Sow the largest attention logits where they are asked for.

        Args:
            query: of the tokens.
            key: of the same tokens.
            segment_ids: the document of each.
            apart: what the method of this name says of them.
        """
        if not self.is_mutable_collection(QK) or self.is_initializing():
            return
        if segment_ids is not None:
            # Padding (segment 0) and what a prediction depth lacks (below) are nobody's query: zeros stand
            # under whatever QK-Clip would act on.
            query = jnp.where(segment_ids[:, :, None, None] <= 0, 0, query)
        maxima = logit_maxima(
            query,
            key,
            causal=self.spec.causal,
            window=self.plan.reach,
            segment_ids=apart.get("query_segment_ids"),
            scale=self.plan.scale,
            precision=self.spec.precision,
        )
        self.sow(QK, "max_logits", maxima)

    def output(self, mixed: Float[Array, "B T H V"]) -> Float[Array, "B T E"]:
        """The mixed values projected to the stream's width."""
        return split_tokens(self.o_proj(split_tokens(mixed.reshape(*mixed.shape[:-2], -1))))
