"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): depths that look further ahead.

Depth k combines, at token t, the state of depth k - 1 at token t - 1 with t's own embedding,

    x_t^k = M_k [N_e(e_t); N_h(h_{t-1}^{k-1})],    h^k = N(layer_k(x^k)),

where h^0 is the decoder's own state. The shared head reads h_t^k, which has seen the tokens up to t, and so
does depth 0; but the deeper one has had to do without the decoder for its last k tokens. Depth k first exists
at a document's token k, counted from 0. The order of the two halves is that of the published checkpoints.

Dimensions: B rows, S or T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from dew.nn.backbones.causal_transformer.cache import LayerCache
from dew.nn.backbones.causal_transformer.config import LayerPlan
from dew.nn.backbones.causal_transformer.layer import DecoderLayer
from dew.nn.backbones.causal_transformer.spec import LayerSpec, Places
from dew.nn.dense import Dense
from dew.nn.moe.routes import RouterRows
from dew.nn.tokens import split_tokens

ABSENT = -1
"""The segment of entries that a depth does not have, so that no query sees them."""


class PredictionDepth(nn.Module):
    """One depth: two norms, the projection of both halves, a decoder layer and a norm.

    Attributes:
        spec: sizes and numerics of the decoder's layers.
        plan: what the decoder's last layer has to itself, and this one too.
        remat: recompute the layer's activations in the backward pass.
    """

    spec: LayerSpec
    plan: LayerPlan
    remat: bool = False

    def setup(self) -> None:
        spec = self.spec
        self.enorm = spec.make_norm()
        self.hnorm = spec.make_norm()
        # No mesh axis splits the joined halves: jaxlib 0.12.0.1 gives wrong rows where one does.
        self.eh_proj = Dense(
            spec.hidden_size,
            ("halves", "embed"),
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            precision=spec.precision,
        )
        layer = nn.remat(DecoderLayer) if self.remat else DecoderLayer
        self.block = layer(spec, self.plan)
        self.norm = spec.make_norm()

    def __call__(
        self,
        embedded: Float[Array, "B S E"],
        previous: Float[Array, "B S E"],
        places: Places,
        segment_ids: Int[Array, "B S"] | None,
        routing: RouterRows | None = None,
    ) -> Float[Array, "B S E"]:
        """The states at every token, from its embedding and the state before it of the depth before."""
        return self.norm(self.block(self._joined(embedded, previous), places, segment_ids, routing))

    def decode(
        self,
        embedded: Float[Array, "B T E"],
        previous: Float[Array, "B T E"],
        places: Places,
        slots: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """The states of new tokens, with the earlier ones in `cache`."""
        x, cache = self.block.decode(self._joined(embedded, previous), places, slots, valid, cache)
        return self.norm(x), cache

    def _joined(self, embedded: jax.Array, previous: jax.Array) -> jax.Array:
        halves = split_tokens(self.enorm(embedded)), split_tokens(self.hnorm(previous))
        joined = jnp.concatenate(halves, axis=-1)
        return split_tokens(self.eh_proj(split_tokens(joined)))


def all_depths(
    depths: Sequence[PredictionDepth],
    embedded: Float[Array, "B S E"],
    hidden: Float[Array, "B S E"],
    places: Places,
    segment_ids: Int[Array, "B S"] | None,
    counted: Bool[Array, "B S"] | None = None,
) -> tuple[Float[Array, "B S E"], ...]:
    """The states of every depth, each at all tokens; where it does not exist they mean nothing.

    Args:
        depths: bound modules, first to last.
        embedded: the tokens' embeddings, as the first layer reads them.
        hidden: the decoder's own states.
        places: of the tokens in their documents.
        segment_ids: the document of each token.
        counted: the tokens that routers report, of those at which a depth exists; None for all.
    """
    states: list[jax.Array] = []
    previous = hidden
    for index, depth in enumerate(depths):
        exists = present(index + 1, segment_ids, hidden.shape[:2])
        segments = jnp.ones(exists.shape, jnp.int32) if segment_ids is None else segment_ids
        segments = jnp.where(exists, segments, ABSENT)
        routing = RouterRows(exists if counted is None else exists & counted)
        previous = depth(embedded, shifted(previous), places, segments, routing)
        states.append(previous)
    return tuple(states)


def present(depth: int, segment_ids: Int[Array, "B S"] | None, shape: tuple[int, ...]) -> Bool[Array, "B S"]:
    """Where a depth exists: at tokens with `depth` more before them in their document."""
    if segment_ids is None:
        return jnp.broadcast_to(jnp.arange(shape[1]) >= depth, shape)
    before = jnp.pad(segment_ids, ((0, 0), (depth, 0)), constant_values=ABSENT)[:, : shape[1]]
    return before == segment_ids


def depth_of(module: str) -> int:
    """The depth, from 1, whose module is called so; 0 for what is none."""
    index = module.removeprefix("depths_")
    return int(index) + 1 if index != module else 0


def shifted(states: Float[Array, "B S E"]) -> Float[Array, "B S E"]:
    """Every token's predecessor's state; zeros at the first."""
    return jnp.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]
