"""Random numbers that belong to one row: its own key, whatever rows stand beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jax.typing import DTypeLike


def row_keys(key: jax.Array, rows: int) -> jax.Array:
    """One key for each row.

    Args:
        key: one typed key, into which each row's index is folded, or a key for each row, which stay.
        rows: their number.

    Raises:
        ValueError: keys of another number.
    """
    if key.ndim == 0:
        return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))
    if key.shape != (rows,):
        raise ValueError(f"key of shape {key.shape} must be one key, or one for each of the {rows} rows")
    return key


def row_noise(
    keys: jax.Array, shape: tuple[int, ...], stream: jax.Array | int, *, dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Standard normal noise `[B, *shape]`, each row by its own key.

    Args:
        keys: `[B]` typed keys.
        shape: of one row.
        stream: what the noise is for; folded into every key, so that each use draws its own.
        dtype: of the noise.
    """

    def one(key: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, stream), shape, dtype)

    return jax.vmap(one)(keys)
