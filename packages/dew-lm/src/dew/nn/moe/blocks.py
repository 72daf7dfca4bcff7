"""The experts of one bank over the tokens that chose them: pairs sorted by expert, one grouped product each.

Dimensions: B rows, S tokens, D model width, F inner width, K experts of a token, G experts of a bank,
P = B S min(K, G) sorted pairs of a token and an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.nn.mlp import GATES, PLAIN, Activation
from dew.nn.moe.choice import Choice
from dew.nn.moe.config import ClampedGate

type Bank = Mapping[str, jax.Array]
"""`up_proj` and, where the activation is gated, `gate_proj` [G, D, F], and `down_proj` [G, F, D]; with biases
also `up_proj_bias`, `gate_proj_bias` [G, F] and `down_proj_bias` [G, D]."""

type GroupedProduct = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`(rows [P, D], weights [G, D, F], sizes [G]) -> [P, F]`: sorted rows times the weight of their group."""


@dataclass(frozen=True)
class Blocks:
    """What an expert computes from a token.

    Attributes:
        activation: of the block, where there is no `gate`.
        gate: in its place, or None.
        weigh_inputs: the token is scaled by its weight, and the result is not.
        product: of sorted rows and a bank's projection.
    """

    activation: Activation
    gate: ClampedGate | None
    weigh_inputs: bool
    product: GroupedProduct


class Pairs(NamedTuple):
    """The pairs of a bank's experts and the tokens that chose them, sorted by expert.

    A token's experts differ, so that P places hold every pair, however many tokens one expert has.

    Attributes:
        token: [P], the token of each pair.
        group: [P], its expert, counted from the bank's first; G behind the last pair.
        sizes: [G] int32, pairs of each expert.
        slot: [B, S, K], the place of each choice.
        here: [B, S, K], whether the choice is of this bank.
        order: [P], the choice of each pair, counted in [B, S, K].
    """

    token: jax.Array
    group: jax.Array
    sizes: jax.Array
    slot: jax.Array
    here: jax.Array
    order: jax.Array


def mixed(
    rows: tuple[jax.Array, Choice], bank: Bank, first: jax.Array | int, blocks: Blocks
) -> Float[Array, "B S D"]:
    """The part of the mixture's output that the experts of one bank compute.

    Args:
        rows: [B, S, D] and the choice of each token.
        bank: experts `first` to `first + G`.
        first: the number of the bank's first expert.
        blocks: what an expert computes.
    """
    x, choice = rows
    groups = bank["up_proj"].shape[0]
    pairs = sorted_pairs(choice.experts - first, groups)
    # The cotangent of a place that no pair fills is not defined: without this it would reach a token.
    filled = (pairs.group < groups)[:, None]
    tokens = jnp.where(filled, x.reshape(-1, x.shape[-1])[pairs.token], 0)
    if blocks.weigh_inputs:
        tokens = tokens * choice.weights.reshape(-1)[pairs.order][:, None].astype(tokens.dtype)
    outputs = _through(tokens, bank, pairs, blocks)
    chosen = jnp.where(pairs.here[..., None], outputs[pairs.slot], 0)
    if not blocks.weigh_inputs:
        chosen = chosen * choice.weights[..., None].astype(chosen.dtype)
    return jnp.sum(chosen, axis=-2)


def sorted_pairs(experts: Int[Array, "B S K"], groups: int) -> Pairs:
    """Sort the choices of a bank of `groups` experts.

    Args:
        experts: counted from the bank's first; others than 0 to `groups - 1` are of other banks.
        groups: G.
    """
    chosen = experts.shape[-1]
    flat = experts.reshape(-1)
    here = (flat >= 0) & (flat < groups)
    # Choices of other banks sort behind all groups.
    key = jnp.where(here, flat, groups)
    order = jnp.argsort(key, stable=True)
    place = jnp.argsort(order)
    filled = order[: flat.size // chosen * min(chosen, groups)]
    return Pairs(
        token=filled // chosen,
        group=key[filled],
        sizes=jnp.sum(key[:, None] == jnp.arange(groups), axis=0, dtype=jnp.int32),
        slot=place.reshape(experts.shape),
        here=here.reshape(experts.shape),
        order=filled,
    )


def _through(tokens: jax.Array, bank: Bank, pairs: Pairs, blocks: Blocks) -> jax.Array:
    def projected(x: jax.Array, name: str) -> jax.Array:
        result = blocks.product(x, bank[name], pairs.sizes)
        bias = bank.get(f"{name}_bias")
        return result if bias is None else result + bias[pairs.group]

    hidden = projected(tokens, "up_proj")
    if "gate_proj" in bank:
        hidden = _gated(projected(tokens, "gate_proj"), hidden, blocks)
    else:
        hidden = PLAIN[blocks.activation](hidden)
    return projected(hidden, "down_proj")


def _gated(gate: jax.Array, up: jax.Array, blocks: Blocks) -> jax.Array:
    clamped = blocks.gate
    if clamped is None:
        return GATES[blocks.activation](gate) * up
    gate = jnp.minimum(gate, clamped.limit)
    up = jnp.clip(up, -clamped.limit, clamped.limit)
    return (up + 1) * gate * jax.nn.sigmoid(clamped.alpha * gate)
