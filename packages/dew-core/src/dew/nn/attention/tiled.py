"""Causal attention in tiles of queries, with a hand-written gradient, for XLA on a CPU.

A tile of queries meets only the keys up to its last position (and, with a window, not those before its first
position's window), so that half of the square of scores is never computed. The gradient contracts no large
operand over its query axis: products of the form `P^T dO` are written `(dO^T P)^T`, with the narrow matrix
transposed in memory first. XLA's CPU products are several times slower otherwise.

Dimensions: B rows, T positions, H query heads, K key heads, N = B * K, G = H / K, D a key's and E a value's
width; t and s are a tile's queries and keys.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from dew.nn.attention.reference import FORBIDDEN, masked_softmax

#: Queries in a tile, and at most how many tiles a sequence is cut into.
TILE = 64
MAX_TILES = 8
#: Weights up to this size are kept for the gradient; larger ones are computed again.
KEPT_BYTES = 32 * 2**20

_UNITS = ((0,), (0,))


@dataclass(frozen=True)
class Tile:
    """Queries `start` to `stop` and the keys `first` to `stop` that they may see."""

    start: int
    stop: int
    first: int


def tiles(length: int, window: int | None) -> Iterator[Tile]:
    """Cut a causal sequence into tiles of queries with the keys that each may see."""
    size = tile_size(length)
    for start in range(0, length, size):
        reach = 0 if window is None else max(0, start - window + 1)
        yield Tile(start, min(start + size, length), reach // size * size)


def tile_size(length: int) -> int:
    """Return the number of queries in a tile: a multiple of `TILE` that makes at most `MAX_TILES` tiles."""
    return TILE * max(1, -(-length // (TILE * MAX_TILES)))


def tiled_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K E"],
    *,
    scale: float,
    window: int | None = None,
    allowed: Bool[Array, "..."] | None = None,
) -> Float[Array, "B T H E"]:
    """Return causal attention of a sequence with itself, as `reference_attention` defines it.

    Reverse-mode differentiable once; forward mode needs another implementation.

    Args:
        query: [B, T, H, D] in float32.
        key: [B, T, K, D] with K dividing H.
        value: [B, T, K, E].
        scale: multiplies the scores.
        window: a query sees itself and the `window - 1` positions before it; None sees all before it.
        allowed: further restriction, broadcastable to [B, H, T, T], of four dimensions.
    """
    rows, length, heads, width = query.shape
    key_heads = key.shape[2]
    units, groups = rows * key_heads, heads // key_heads
    by_head = query.swapaxes(1, 2).reshape(units, groups, length, width)
    mixed = _attend(
        by_head * scale,
        key.swapaxes(1, 2).reshape(units, length, width),
        value.swapaxes(1, 2).reshape(units, length, value.shape[-1]),
        None if allowed is None else _by_unit(allowed, rows, key_heads, groups, length),
        window,
    )
    return mixed.reshape(rows, heads, length, value.shape[-1]).swapaxes(1, 2)


def _by_unit(
    allowed: Bool[Array, "..."], rows: int, key_heads: int, groups: int, length: int
) -> Bool[Array, "N g T T"]:
    if allowed.shape[1] == 1:
        full = jnp.broadcast_to(allowed, (rows, key_heads, length, length))
        return full.reshape(rows * key_heads, 1, length, length)
    full = jnp.broadcast_to(allowed, (rows, key_heads * groups, length, length))
    return full.reshape(rows * key_heads, groups, length, length)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(
    query: Float[Array, "N G T D"],
    key: Float[Array, "N T D"],
    value: Float[Array, "N T E"],
    allowed: Bool[Array, "..."] | None,
    window: int | None,
) -> Float[Array, "N G T D"]:
    return _forward(query, key, value, allowed, window)[0]


type _Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array, list[jax.Array]]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, allowed: jax.Array | None, window: int | None
) -> tuple[jax.Array, _Kept]:
    outputs: list[jax.Array] = []
    weights: list[jax.Array] = []
    for tile in tiles(query.shape[2], window):
        weights.append(_weights(query, key, allowed, tile, window))
        outputs.append(_mix(weights[-1], value[:, tile.first : tile.stop]))
    output = jnp.concatenate(outputs, axis=2)
    kept = weights if sum(part.nbytes for part in weights) <= KEPT_BYTES else []
    return output, (query, key, value, allowed, output, kept)


def _backward(
    window: int | None, kept: _Kept, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    query, key, value, allowed, output, kept_weights = kept
    # The softmax's own term: the sum of weight times weight cotangent is that of output times its cotangent.
    centre = jnp.sum(cotangent * output, axis=-1, keepdims=True)
    query_turned, cotangent_turned = _turned(query), _turned(cotangent)
    cuts = list(tiles(query.shape[2], window))
    d_query: list[jax.Array] = []
    d_key: list[jax.Array] = []
    d_value: list[jax.Array] = []
    for index, tile in enumerate(cuts):
        queries, keys = slice(tile.start, tile.stop), slice(tile.first, tile.stop)
        weights = kept_weights[index] if kept_weights else _weights(query, key, allowed, tile, window)
        d_weights = _scores(cotangent[:, :, queries], value[:, keys])
        d_scores = weights * (d_weights - centre[:, :, queries])
        d_query.append(_mix(d_scores, key[:, keys]))
        d_key.append(_collect(query_turned[..., queries], d_scores))
        d_value.append(_collect(cotangent_turned[..., queries], weights))
    return (
        jnp.concatenate(d_query, axis=2),
        _summed(d_key, cuts).swapaxes(1, 2),
        _summed(d_value, cuts).swapaxes(1, 2),
        None,
    )


_attend.defvjp(_forward, _backward)


def _weights(
    query: jax.Array, key: jax.Array, allowed: jax.Array | None, tile: Tile, window: int | None
) -> Float[Array, "N G t s"]:
    scores = _scores(query[:, :, tile.start : tile.stop], key[:, tile.first : tile.stop])
    distance = jnp.arange(tile.start, tile.stop)[:, None] - jnp.arange(tile.first, tile.stop)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    if allowed is None:
        # Every query sees itself, so no row is empty.
        return jax.nn.softmax(jnp.where(visible, scores, FORBIDDEN), axis=-1)
    return masked_softmax(scores, visible & allowed[:, :, tile.start : tile.stop, tile.first : tile.stop])


def _scores(query: Float[Array, "N G t D"], key: Float[Array, "N s D"]) -> Float[Array, "N G t s"]:
    return lax.dot_general(query, key, (((3,), (2,)), _UNITS))


def _mix(weights: Float[Array, "N G t s"], value: Float[Array, "N s D"]) -> Float[Array, "N G t D"]:
    return lax.dot_general(weights, value, (((3,), (1,)), _UNITS))


def _turned(x: Float[Array, "N G T D"]) -> Float[Array, "N D G T"]:
    # The barrier keeps XLA from folding the transposition into the product, which would undo it.
    return lax.optimization_barrier(x.transpose(0, 3, 1, 2))


def _collect(turned: Float[Array, "N D G t"], weights: Float[Array, "N G t s"]) -> Float[Array, "N D s"]:
    return lax.dot_general(turned, weights, (((2, 3), (1, 2)), _UNITS))


def _summed(parts: Sequence[Float[Array, "N D s"]], cuts: Sequence[Tile]) -> Float[Array, "N D T"]:
    """Add what the tiles gave to each block of keys, and join the blocks."""
    blocks: list[jax.Array] = []
    for block in cuts:
        seen = [
            part[..., block.start - tile.first : block.stop - tile.first]
            for part, tile in zip(parts, cuts, strict=True)
            if tile.first <= block.start and block.stop <= tile.stop
        ]
        blocks.append(functools.reduce(operator.add, seen))
    return jnp.concatenate(blocks, axis=-1)
