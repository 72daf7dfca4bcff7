"""The resident rows of a server and the two programs over them: a request enters a row, and all rows draw.

What a row computes depends on its own prompt, key and budget alone. Its prompt is read by itself, a draw is
`dew.sampling.text.loop.draw` over that row, and a freed row keeps nothing for the next request.

Dimensions: B rows, C slots of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from dew.sampling.decoding import StepState
from dew.sampling.text import loop
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.faults import SOUND
from dew.sampling.text.operations import Cache, DecodeOps, prompt_state

type Variables = Mapping[str, Any]


@struct.dataclass
class Rows:
    """What the rows hold beside the cache.

    Attributes:
        carry: their tokens, likelihoods and ends; prompt and draw regions are C slots each, and every row
            counts its own draws.
        budgets: `[B]` tokens a row may draw.
    """

    carry: loop.Carry
    budgets: jax.Array


@struct.dataclass
class Entry:
    """One checked request as it enters a row.

    Attributes:
        tokens: `[1, C]`, the prompt from slot 0.
        length: `[1]` prompt tokens.
        key: `[1]`, the row's key.
        budget: `[1]` tokens to draw at most.
        row: where it goes.
    """

    tokens: jax.Array
    length: jax.Array
    key: jax.Array
    budget: jax.Array
    row: jax.Array


@partial(jax.jit, static_argnames=("model", "rows", "capacity"))
def empty_cache(model: Any, rows: int, capacity: int) -> Cache:
    """The cache of `rows` rows, without tokens."""
    return model.init_cache(rows, capacity)


@partial(jax.jit, static_argnames=("rows", "capacity", "pad_id"))
def vacant(rows: int, capacity: int, pad_id: int) -> Rows:
    """Rows without a request. Their keys draw nothing that is kept."""
    blank = jnp.zeros((rows, capacity), jnp.float32)
    counts = jnp.zeros(rows, jnp.int32)
    state = StepState(
        tokens=jnp.full((rows, 2 * capacity), pad_id, jnp.int32),
        valid=jnp.zeros((rows, 2 * capacity), bool),
        step=counts,
        active=jnp.zeros(rows, bool),
        keys=jax.vmap(jax.random.key)(np.zeros(rows, np.uint32)),
        prompt_width=capacity,
        budget=counts,
    )
    carry = loop.Carry(
        state=state,
        prompt_lengths=counts,
        terminated=jnp.zeros(rows, bool),
        behavior_log_probs=blank,
        raw_log_probs=blank,
        fault=jnp.full(rows, SOUND, jnp.int32),
        drawn=counts,
    )
    return Rows(carry, counts)


@partial(jax.jit, static_argnames=("model", "width"), donate_argnames=("cache",))
def enter(
    model: nn.Module,
    params: Variables,
    rows: Rows,
    cache: Cache,
    entry: Entry,
    transform: Transforms,
    stopping: Criteria,
    pad_id: jax.Array,
    *,
    width: int,
) -> tuple[Rows, Cache]:
    """Read the prompt of `entry` in `width` slots and draw its first token; its row is overwritten whole.

    The new row of the cache is zero behind the prompt: attention gives the slots ahead of a row's cursor no
    weight, and no weight times an infinity an earlier request left would not be zero.
    """
    capacity = entry.tokens.shape[1]
    read = DecodeOps(model, params).prefill(entry.tokens[:, :width], entry.length, capacity=width)
    active = jnp.ones(1, bool)
    state = prompt_state(entry.tokens, entry.length, entry.key, active, pad_id, entry.budget, slots=capacity)
    carry = loop.begin(state, entry.length, read.logits, transform, stopping)
    fresh = within_budget(Rows(replace(carry, drawn=carry.state.step), entry.budget))
    whole = jax.eval_shape(lambda: model.init_cache(1, capacity))
    grown = jax.tree.map(_corner, read.cache, whole)

    def put(resident: jax.Array, new: jax.Array) -> jax.Array:
        return resident.at[entry.row].set(new[0])

    return jax.tree.map(put, rows, fresh), jax.tree.map(put, cache, grown)


@partial(jax.jit, static_argnames=("model",), donate_argnames=("cache",))
def advance(
    model: nn.Module,
    params: Variables,
    rows: Rows,
    cache: Cache,
    transform: Transforms,
    stopping: Criteria,
    steps: jax.Array,
    awaited: jax.Array,
) -> tuple[Rows, Cache]:
    """Draw up to `steps` tokens for every active row, or until none is active or one of `awaited` is not.

    Args:
        steps: how many; data, so that one executable serves a single step and a run of many.
        awaited: `[B]` booleans.
    """

    def unfinished(state: tuple[Rows, Cache, jax.Array]) -> jax.Array:
        active = state[0].carry.state.active
        return (state[2] < steps) & jnp.any(active) & ~jnp.any(awaited & ~active)

    def step(state: tuple[Rows, Cache, jax.Array]) -> tuple[Rows, Cache, jax.Array]:
        rows, cache, count = state
        rows, cache = _step(DecodeOps(model, params), rows, cache, transform, stopping)
        return rows, cache, count + 1

    rows, cache, _ = jax.lax.while_loop(unfinished, step, (rows, cache, jnp.zeros((), jnp.int32)))
    return rows, cache


def within_budget(rows: Rows) -> Rows:
    """`rows` with those that have drawn their budget inactive."""
    state = rows.carry.state
    state = replace(state, active=state.active & (state.step < rows.budgets))
    return replace(rows, carry=replace(rows.carry, state=state))


@jax.jit
def released(rows: Rows, row: jax.Array) -> Rows:
    """`rows` with one of them inactive."""
    state = rows.carry.state
    state = replace(state, active=state.active.at[row].set(False))
    return replace(rows, carry=replace(rows.carry, state=state))


def _step(
    ops: DecodeOps, rows: Rows, cache: Cache, transform: Transforms, stopping: Criteria
) -> tuple[Rows, Cache]:
    carry = rows.carry
    state = carry.state
    pending = loop.read(state.tokens, state.prompt_width + jnp.maximum(carry.drawn - 1, 0))
    positions = jnp.maximum(carry.prompt_lengths + state.step - 1, 0)
    hidden, cache = ops.decode(cache, pending[:, None], positions[:, None], state.active[:, None])
    carry = loop.draw(carry, ops.logits(hidden[:, 0]), transform, stopping)
    # A row that has ended stays where it is: its next column is the one behind its last token.
    carry = replace(carry, drawn=carry.state.step)
    return within_budget(replace(rows, carry=carry)), cache


def _corner(small: jax.Array, whole: jax.ShapeDtypeStruct) -> jax.Array:
    """`small` at the start of an array of zeros shaped as `whole`."""
    return jnp.pad(small, [(0, full - size) for size, full in zip(small.shape, whole.shape, strict=True)])
