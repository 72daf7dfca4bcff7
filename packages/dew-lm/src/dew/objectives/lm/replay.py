"""What an objective tells a model's routers about [B, S + 1] ids.

Dimensions: B rows, S predictions a row, L layers of the model, K experts of a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from dew.nn.moe.routes import RouterRows, Routes

if TYPE_CHECKING:
    from dew.objectives.lm.decoder import Decoder

type Record = tuple[Int[Array, "B S1 L K"], Bool[Array, "B S1"] | None]
"""The experts of every id, and which ids the record covers; None for all."""


def router_rows(
    model: Decoder,
    tokens: Int[Array, "B S1"],
    *,
    pad_id: int | None,
    segment_ids: Int[Array, "B S1"] | None,
    routes: Record | None,
) -> RouterRows:
    """What the routers are told about the ids a model reads, the first S of each row.

    An id is counted where it is neither `pad_id` nor of segment 0.

    Args:
        model: has a mixture of experts.
        tokens: [B, S + 1].
        pad_id: of padding, or None.
        segment_ids: [B, S + 1] or None.
        routes: experts to replay, aligned with `tokens`, or None.

    Raises:
        ValueError: a record of another shape or type than the ids and the model need.
    """
    counted = counted_ids(tokens, pad_id=pad_id, segment_ids=segment_ids)
    if routes is None:
        return RouterRows(counted)
    experts, covered = checked_record(model, tokens, routes)
    return RouterRows(counted, Routes(experts[:, :-1], None if covered is None else covered[:, :-1]))


def counted_ids(
    tokens: Int[Array, "B S1"], *, pad_id: int | None, segment_ids: Int[Array, "B S1"] | None
) -> Bool[Array, "B S"] | None:
    """Which of the ids a model reads hold a token: neither `pad_id` nor of segment 0. None for all."""
    counted = None if pad_id is None else tokens[:, :-1] != pad_id
    if segment_ids is None:
        return counted
    inside = segment_ids[:, :-1] != 0
    return inside if counted is None else counted & inside


def checked_record(model: Decoder, tokens: Int[Array, "B S1"], routes: Record) -> Record:
    """`routes` as arrays.

    Raises:
        ValueError: a record of another shape or type than the ids and the model need.
    """
    described: Any = model
    layers, top_k = described.num_layers, described.mixture.top_k
    experts = jnp.asarray(routes[0])
    if experts.shape != (*tokens.shape, layers, top_k):
        raise ValueError(
            f"routes: experts of shape {experts.shape} do not fit tokens {tokens.shape} of a model with "
            f"num_layers={layers} and mixture.top_k={top_k}; give {(*tokens.shape, layers, top_k)}, every "
            "layer's whether it has experts or not"
        )
    if not jnp.issubdtype(experts.dtype, jnp.integer):
        raise ValueError(f"routes: experts of dtype {experts.dtype} must be integers")
    if routes[1] is None:
        return experts, None
    covered = jnp.asarray(routes[1])
    if covered.shape != tokens.shape or covered.dtype != bool:
        raise ValueError(
            f"routes: the mask of covered ids is {covered.dtype}{list(covered.shape)} and must be "
            f"bool{list(tokens.shape)}, aligned with tokens"
        )
    return experts, covered
