"""The compiled parts of decoding: the prompt's forward, the first draw, and the loop over further ones.

The loop's trip count is data, so one executable serves a whole request and a stream that enters it again and
again: both run the same instructions on the same carried state and give the same bits.

Dimensions: B rows, W packed prompt slots, N draw slots, C cache slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from dew.sampling.decoding import StepState
from dew.sampling.decoding.filters import Greedy, drawable

type Chain = tuple[Callable[..., jax.Array], ...]
type Cache = Any
type Variables = Mapping[str, Any]

SOUND, MODEL_UNDEFINED, CHAIN_UNDEFINED = 0, 1, 2


@struct.dataclass
class Carry:
    """The rows of one continuation, without the cache.

    Attributes:
        state: tokens, validity, committed counts, activity and keys.
        prompt_lengths: `[B]` real prompt tokens.
        terminated: `[B]`, rows ended by a criterion that is no budget.
        behavior_log_probs: `[B, N]`.
        raw_log_probs: `[B, N]`.
        fault: `[B]`, SOUND or what made the row's distribution undefined.
        drawn: how many steps ran: one number, or `[B]` where each row is at a step of its own.
    """

    state: StepState
    prompt_lengths: jax.Array
    terminated: jax.Array
    behavior_log_probs: jax.Array
    raw_log_probs: jax.Array
    fault: jax.Array
    drawn: jax.Array


@partial(jax.jit, static_argnames=("model", "capacity"))
def prefill(
    model: nn.Module, params: Variables, tokens: jax.Array, lengths: jax.Array, *, capacity: int
) -> tuple[Cache, jax.Array]:
    """Read the packed prompts `[B, W]`; return the cache and the logits `[B, V]` after each last token."""
    rows, width = tokens.shape
    cache = model.init_cache(rows, capacity)
    slots = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    hidden, cache = model.apply(params, tokens, slots, slots < lengths[:, None], cache, method="decode")
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return cache, head(model, params, last)


@partial(jax.jit, static_argnames=("slots",))
def begin(
    tokens: jax.Array,
    lengths: jax.Array,
    keys: jax.Array,
    logits: jax.Array,
    chain: Chain,
    criteria: Chain,
    pad_id: jax.Array,
    budget: jax.Array,
    *,
    slots: int,
) -> Carry:
    """Draw the first token of every row, which may draw `budget` `[B]`, from the prompt's `logits`."""
    rows, width = tokens.shape
    shift = jnp.arange(width) - (width - lengths)[:, None]
    prompt = jnp.where(shift >= 0, jnp.take_along_axis(tokens, jnp.maximum(shift, 0), axis=1), pad_id)
    state = StepState(
        tokens=jnp.concatenate([prompt, jnp.full((rows, slots), pad_id)], axis=1).astype(jnp.int32),
        valid=jnp.concatenate([shift >= 0, jnp.zeros((rows, slots), bool)], axis=1),
        step=jnp.zeros(rows, jnp.int32),
        active=jnp.ones(rows, bool),
        keys=keys,
        prompt_width=width,
        budget=budget,
    )
    blank = jnp.zeros((rows, slots), jnp.float32)
    carry = Carry(
        state=state,
        prompt_lengths=lengths,
        terminated=jnp.zeros(rows, bool),
        behavior_log_probs=blank,
        raw_log_probs=blank,
        fault=jnp.full(rows, SOUND, jnp.int32),
        drawn=jnp.zeros((), jnp.int32),
    )
    return draw(carry, logits, chain, criteria)


@partial(jax.jit, static_argnames=("model",))
def advance(
    model: nn.Module,
    params: Variables,
    carry: Carry,
    cache: Cache,
    chain: Chain,
    criteria: Chain,
    until: jax.Array,
) -> tuple[Carry, Cache]:
    """Draw until `until` tokens stand in each row or every row has ended."""

    def unfinished(loop: tuple[Carry, Cache]) -> jax.Array:
        return (loop[0].drawn < until) & jnp.any(loop[0].state.active)

    def step(loop: tuple[Carry, Cache]) -> tuple[Carry, Cache]:
        carry, cache = loop
        state = carry.state
        pending = read(state.tokens, state.prompt_width + carry.drawn - 1)[:, None]
        positions = (carry.prompt_lengths + state.step - 1)[:, None]
        hidden, cache = model.apply(params, pending, positions, state.active[:, None], cache, method="decode")
        return draw(carry, head(model, params, hidden[:, 0]), chain, criteria), cache

    return jax.lax.while_loop(unfinished, step, (carry, cache))


def draw(carry: Carry, logits: jax.Array, chain: Chain, criteria: Chain) -> Carry:
    """Commit one token to every active row."""
    state, column = carry.state, carry.drawn
    raw = jax.nn.log_softmax(logits, axis=-1)
    scores = logits
    for transform in chain:
        scores = transform(state, scores).astype(logits.dtype)
    fault = jnp.where(
        ~drawable(logits), MODEL_UNDEFINED, jnp.where(~drawable(scores), CHAIN_UNDEFINED, SOUND)
    )
    fault = jnp.where(state.active, fault, carry.fault)
    alive = state.active & (fault == SOUND)
    behavior = jax.nn.log_softmax(scores, axis=-1)
    chosen = choose(state, behavior, certain=bool(chain) and isinstance(chain[-1], Greedy))
    slot = state.prompt_width + column
    state = replace(
        state,
        tokens=write(state.tokens, slot, jnp.where(alive, chosen, read(state.tokens, slot))),
        valid=write(state.valid, slot, alive),
        step=state.step + alive,
        active=alive,
    )
    ended, terminated = judge(state, chosen, criteria)
    return replace(
        carry,
        state=replace(state, active=alive & ~ended),
        terminated=carry.terminated | (alive & terminated),
        behavior_log_probs=write(
            carry.behavior_log_probs, column, jnp.where(alive, pick(behavior, chosen), 0)
        ),
        raw_log_probs=write(carry.raw_log_probs, column, jnp.where(alive, pick(raw, chosen), 0)),
        fault=fault,
        drawn=column + 1,
    )


def choose(state: StepState, log_probs: jax.Array, *, certain: bool) -> jax.Array:
    """`[B]` tokens drawn from `log_probs` `[B, V]`, each row with its own key and step.

    The largest of `log_probs` plus Gumbel noise is such a draw; the noise has full precision, since the cheap
    form never reaches events below 1e-7.
    """
    if certain:
        return jnp.argmax(log_probs, axis=-1).astype(jnp.int32)

    def noise(key: jax.Array, step: jax.Array) -> jax.Array:
        return jax.random.gumbel(jax.random.fold_in(key, step), log_probs.shape[1:], jnp.float32, mode="high")

    return jnp.argmax(log_probs + jax.vmap(noise)(state.keys, state.step), axis=-1).astype(jnp.int32)


def judge(state: StepState, chosen: jax.Array, criteria: Chain) -> tuple[jax.Array, jax.Array]:
    """`[B]` booleans: which rows end, and which of them by a criterion that is no budget."""
    ended = terminated = jnp.zeros(chosen.shape, bool)
    for criterion in criteria:
        fired = criterion(state, chosen)
        ended = ended | fired
        if not getattr(criterion, "budget", False):
            terminated = terminated | fired
    return ended, terminated


def head(model: Any, params: Variables, hidden: jax.Array) -> jax.Array:
    """Float32 logits `[B, V]` of hidden states `[B, D]`."""
    weight = model.head_weight(params).astype(hidden.dtype)
    logits = jnp.dot(
        hidden,
        weight,
        precision=getattr(model, "precision", None),
        preferred_element_type=jnp.promote_types(hidden.dtype, "float32"),
    )
    cap = getattr(model, "final_logit_softcap", None)
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def pick(log_probs: jax.Array, chosen: jax.Array) -> jax.Array:
    """`[B]`, the entry of each row's chosen token."""
    return jnp.take_along_axis(log_probs, chosen[:, None], axis=1)[:, 0]


def read(buffer: jax.Array, column: jax.Array) -> jax.Array:
    """`[B]`, one column of `buffer` `[B, S]`, or of each row its own where `column` is `[B]`."""
    if column.ndim:
        return jnp.take_along_axis(buffer, column[:, None], axis=1)[:, 0]
    return jax.lax.dynamic_index_in_dim(buffer, column, axis=1, keepdims=False)


def write(buffer: jax.Array, column: jax.Array, values: jax.Array) -> jax.Array:
    """`buffer` `[B, S]` with `values` `[B]` in one column, or in each row's own where `column` is `[B]`."""
    values = values.astype(buffer.dtype)
    if column.ndim:
        return buffer.at[jnp.arange(buffer.shape[0]), column].set(values, mode="drop")
    return jax.lax.dynamic_update_slice_in_dim(buffer, values[:, None], column, axis=1)
