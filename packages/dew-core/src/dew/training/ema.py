"""The moving average of selected leaves, advanced once per committed update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dew.objectives.base import EMASpec, Variables, select
from dew.training.widths import inexact, wide_dtype, widened


def initial_average(variables: Variables, spec: EMASpec) -> Variables:
    """A copy of the selected leaves in working precision: bfloat16 has no room for the small increments.

    Raises:
        ValueError: the spec selects nothing.
    """
    kept = select(variables, spec.select)
    if not kept:
        raise ValueError("EMASpec.select keeps no leaf of the variables; widen the filter or leave ema None")
    return jax.tree.map(jnp.copy, widened(kept))


def advanced(average: Variables, variables: Variables, spec: EMASpec, updates: jax.Array) -> Variables:
    """`decay(n) * average + (1 - decay(n)) * variables`, with `n` updates completed before this one.

    The arithmetic is at least float32; each result is rounded to its leaf's dtype. A decay of exactly 1 keeps
    the old leaf bit for bit. Leaves that are not floats (counters, keys) follow the live value.
    """
    keep: Any = spec.decay(updates)
    add: Any = 1 - keep
    live = select(variables, spec.select)

    def follow(old: jax.Array, new: jax.Array) -> jax.Array:
        if not inexact(old):
            return new
        wide = wide_dtype(jnp.promote_types(old.dtype, new.dtype))
        mixed = jnp.asarray(keep, wide) * old.astype(wide) + jnp.asarray(add, wide) * new.astype(wide)
        return jnp.where(jnp.asarray(keep) == 1, old, mixed.astype(old.dtype))

    return jax.tree.map(follow, average, live)
