"""Working precision: accumulators, averages and losses are at least float32, and float64 stays float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def inexact(leaf: Any) -> bool:
    """Whether a leaf holds real or complex floats, so that averaging and differentiation apply to it."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def wide_dtype(dtype: Any) -> Any:
    """`dtype` for integers, else the wider of it and float32."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def widened(tree: Any) -> Any:
    """Every inexact leaf in its working precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(wide_dtype(jnp.asarray(leaf).dtype)), tree)


def like(tree: Any, target: Any) -> Any:
    """Every leaf of `tree` in the dtype of the leaf of `target` in its place."""
    return jax.tree.map(lambda leaf, to: leaf.astype(to.dtype), tree, target)


def all_finite(tree: Any) -> jax.Array:
    """Whether every inexact leaf is finite throughout."""
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if inexact(leaf)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def chosen(condition: jax.Array, yes: Any, no: Any) -> Any:
    """`yes` where the scalar `condition` holds, else `no`, leaf by leaf.

    A leaf that is the same object is kept.
    """
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), yes, no)
