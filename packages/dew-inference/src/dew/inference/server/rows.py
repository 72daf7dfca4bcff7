"""The resident rows of a server and the two programs over them: a request enters a row, and all rows draw.

What a row computes depends on its own prompt, key and budget alone. Its prompt is read by itself, a draw is
`dew.sampling.text.loop.draw` over that row, and a freed row keeps nothing for the next request.

The rows are a `dew.sampling.text.loop.Carry` whose prompt and draw regions are C slots each; every row counts
its own draws, against the budget in its state.

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
def vacant(rows: int, capacity: int, pad_id: int) -> loop.Carry:
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
    return loop.Carry(
        state=state,
        prompt_lengths=counts,
        terminated=jnp.zeros(rows, bool),
        behavior_log_probs=blank,
        raw_log_probs=blank,
        fault=jnp.full(rows, SOUND, jnp.int32),
        drawn=counts,
    )


@partial(jax.jit, static_argnames=("model", "width"), donate_argnames=("cache",))
def enter(
    model: nn.Module,
    params: Variables,
    rows: loop.Carry,
    cache: Cache,
    entry: Entry,
    transform: Transforms,
    stopping: Criteria,
    pad_id: jax.Array,
    *,
    width: int,
) -> tuple[loop.Carry, Cache]:
    """Read the prompt of `entry` in `width` slots and draw its first token; its row is overwritten whole.

    The new row of the cache is zero behind the prompt: attention gives the slots ahead of a row's cursor no
    weight, and no weight times an infinity an earlier request left would not be zero.
    """
    capacity = entry.tokens.shape[1]
    read = DecodeOps(model, params).prefill(entry.tokens[:, :width], entry.length, capacity=width)
    active = jnp.ones(1, bool)
    state = prompt_state(entry.tokens, entry.length, entry.key, active, pad_id, entry.budget, slots=capacity)
    carry = loop.begin(state, entry.length, read.logits, transform, stopping)
    fresh = within_budget(replace(carry, drawn=carry.state.step))
    whole = jax.eval_shape(lambda: model.init_cache(1, capacity))
    grown = jax.tree.map(_corner, read.cache, whole)

    def put(resident: jax.Array, new: jax.Array) -> jax.Array:
        return resident.at[entry.row].set(new[0])

    return jax.tree.map(put, rows, fresh), jax.tree.map(put, cache, grown)


@partial(jax.jit, static_argnames=("model",), donate_argnames=("cache",))
def advance(
    model: nn.Module,
    params: Variables,
    rows: loop.Carry,
    cache: Cache,
    transform: Transforms,
    stopping: Criteria,
    steps: jax.Array,
    awaited: jax.Array,
) -> tuple[loop.Carry, Cache]:
    """Draw up to `steps` tokens for every active row, or until none is active or one of `awaited` is not.

    Args:
        steps: how many; data, so that one executable serves a single step and a run of many.
        awaited: `[B]` booleans.
    """

    def unfinished(state: tuple[loop.Carry, Cache, jax.Array]) -> jax.Array:
        active = state[0].state.active
        return (state[2] < steps) & jnp.any(active) & ~jnp.any(awaited & ~active)

    def step(state: tuple[loop.Carry, Cache, jax.Array]) -> tuple[loop.Carry, Cache, jax.Array]:
        rows, cache, count = state
        rows, cache = _step(DecodeOps(model, params), rows, cache, transform, stopping)
        return rows, cache, count + 1

    rows, cache, _ = jax.lax.while_loop(unfinished, step, (rows, cache, jnp.zeros((), jnp.int32)))
    return rows, cache


def within_budget(rows: loop.Carry) -> loop.Carry:
    """`rows` with those that have drawn their budget inactive."""
    state = rows.state
    return replace(rows, state=replace(state, active=state.active & (state.step < state.limit())))


@jax.jit
def released(rows: loop.Carry, row: jax.Array) -> loop.Carry:
    """`rows` with one of them inactive."""
    state = rows.state
    return replace(rows, state=replace(state, active=state.active.at[row].set(False)))


def _step(
    ops: DecodeOps, rows: loop.Carry, cache: Cache, transform: Transforms, stopping: Criteria
) -> tuple[loop.Carry, Cache]:
    state = rows.state
    pending = loop.read(state.tokens, state.prompt_width + jnp.maximum(rows.drawn - 1, 0))
    positions = jnp.maximum(rows.prompt_lengths + state.step - 1, 0)
    hidden, cache = ops.decode(cache, pending[:, None], positions[:, None], state.active[:, None])
    rows = loop.draw(rows, ops.logits(hidden[:, 0]), transform, stopping)
    # A row that has ended stays where it is: its next column is the one behind its last token.
    return within_budget(replace(rows, drawn=rows.state.step)), cache


def _corner(small: jax.Array, whole: jax.ShapeDtypeStruct) -> jax.Array:
    """`small` at the start of an array of zeros shaped as `whole`."""
    return jnp.pad(small, [(0, full - size) for size, full in zip(small.shape, whole.shape, strict=True)])
