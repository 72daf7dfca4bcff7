"""Rows times the weight of their group, and on a CPU no product with another group's weight.

`jax.lax.ragged_dot` is one kernel on an accelerator; XLA on a CPU multiplies every row by every group's
weight and keeps one of the results. Here a CPU goes through the groups that have rows, and through a group's
rows in tiles. A tile that ends in the next group leaves there what the next group overwrites.

Dimensions: N rows, sorted by group; G groups; D and F widths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dew.nn.varying import alike

LEAST_TILE, MOST_TILE = 8, 128
"""Rows of a tile where the groups have fewer, or more, on average."""


def grouped_product(
    rows: Float[Array, "N D"],
    weights: Float[Array, "G D F"],
    sizes: Int[Array, " G"],
    precision: lax.PrecisionLike = None,
) -> Float[Array, "N F"]:
    """`rows[n] @ weights[g]`, g the group of row n. Differentiable in reverse, any number of times.

    Args:
        rows: sorted by group; those after the last group give what no one may read, as their gradient.
        weights: of every group.
        sizes: rows of each group; their sum is at most N.
        precision: of the products.
    """
    if jax.default_backend() != "cpu":
        return lax.ragged_dot(rows, weights, sizes, precision=precision)
    return _product(*alike(*map(jnp.asarray, (rows, weights, sizes))), precision)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product(rows: jax.Array, weights: jax.Array, sizes: jax.Array, precision: Any) -> jax.Array:
    tile = tile_rows(rows.shape[0], weights.shape[0])
    padded = _padded(rows, tile)

    def group(g: jax.Array, start: jax.Array, end: jax.Array, out: jax.Array) -> jax.Array:
        weight = lax.dynamic_index_in_dim(weights, g, keepdims=False)

        def one(at: jax.Array, out: jax.Array) -> jax.Array:
            piece = jnp.dot(lax.dynamic_slice_in_dim(padded, at, tile), weight, precision=precision)
            return lax.dynamic_update_slice_in_dim(out, piece, at, 0)

        return _through(one, start, end, tile, out)

    blank = _zeros_beside(rows, (padded.shape[0], weights.shape[-1]), rows.dtype)
    return _groups(group, sizes, blank)[: rows.shape[0]]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _outer(rows: jax.Array, others: jax.Array, sizes: jax.Array, precision: Any) -> jax.Array:
    """[G, D, F]: the sum over a group's rows of `rows[n] others[n]^T`."""
    tile = tile_rows(rows.shape[0], sizes.shape[0])
    left, right = _padded(rows, tile), _padded(others, tile)
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    shape = (rows.shape[1], others.shape[1])

    def group(g: jax.Array, start: jax.Array, end: jax.Array, out: jax.Array) -> jax.Array:
        def one(at: jax.Array, total: jax.Array) -> jax.Array:
            own = (at + jnp.arange(tile) < end)[:, None]
            mine = jnp.where(own, lax.dynamic_slice_in_dim(left, at, tile), 0)
            theirs = jnp.where(own, lax.dynamic_slice_in_dim(right, at, tile), 0)
            return total + jnp.dot(mine.T, theirs, precision=precision, preferred_element_type=wide)

        total = _through(one, start, end, tile, _zeros_beside(rows, shape, wide))
        return lax.dynamic_update_index_in_dim(out, total.astype(out.dtype), g, 0)

    return _groups(group, sizes, _zeros_beside(rows, (sizes.shape[0], *shape), rows.dtype))


def _product_forward(rows: jax.Array, weights: jax.Array, sizes: jax.Array, precision: Any) -> Any:
    return _product(rows, weights, sizes, precision), (rows, weights, sizes)


def _product_backward(precision: Any, kept: Any, cotangent: jax.Array) -> Any:
    rows, weights, sizes = kept
    back = _product(cotangent, jnp.swapaxes(weights, 1, 2), sizes, precision)
    return back, _outer(rows, cotangent, sizes, precision), None


def _outer_forward(rows: jax.Array, others: jax.Array, sizes: jax.Array, precision: Any) -> Any:
    return _outer(rows, others, sizes, precision), (rows, others, sizes)


def _outer_backward(precision: Any, kept: Any, cotangent: jax.Array) -> Any:
    rows, others, sizes = kept
    of_rows = _product(others, jnp.swapaxes(cotangent, 1, 2), sizes, precision)
    return of_rows, _product(rows, cotangent, sizes, precision), None


_product.defvjp(_product_forward, _product_backward)
_outer.defvjp(_outer_forward, _outer_backward)


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile: the least power of two that holds an average group, within bounds."""
    average = -(-rows // groups)
    return min(max(LEAST_TILE, 1 << (average - 1).bit_length()), MOST_TILE, rows)


def _groups(
    visit: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array],
    sizes: jax.Array,
    out: jax.Array,
) -> jax.Array:
    """`visit(group, start, end, out)` in turn for the groups that have rows."""
    ends = jnp.cumsum(sizes)
    present = jnp.argsort(sizes == 0, stable=True)

    def at(i: jax.Array, out: jax.Array) -> jax.Array:
        g = present[i]
        return visit(g, ends[g] - sizes[g], ends[g], out)

    return lax.fori_loop(0, jnp.sum(sizes > 0), at, out)


def _through(
    visit: Callable[[jax.Array, jax.Array], jax.Array],
    start: jax.Array,
    end: jax.Array,
    tile: int,
    out: jax.Array,
) -> jax.Array:
    """`visit(at, out)` in turn for the tiles from `start` on that begin before `end`."""
    return lax.while_loop(
        lambda held: held[0] < end, lambda held: (held[0] + tile, visit(*held)), (start, out)
    )[1]


def _padded(rows: jax.Array, tile: int) -> jax.Array:
    """With room for a tile that begins at the last row."""
    return jnp.pad(rows, ((0, tile), (0, 0)))


def _zeros_beside(rows: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Zeros that vary over the mesh axes that `rows` vary over."""
    return alike(jnp.zeros(shape, dtype), rows)[0]
