"""Drawing token after token: the first from the prompt's logits, the others in one compiled loop.

The loop's trip count is data, so one executable serves a whole request and a stream that enters it again and
again: both run the same instructions on the same carried state and give the same bits.

Dimensions: B rows, N draw slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.faults import SOUND, fault_of
from dew.sampling.text.operations import Cache, DecodeOps


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


class Weighed(NamedTuple):
    """A distribution over the next token.

    Attributes:
        log_probs: `[B, V]` after the chain.
        raw: `[B, V]` of the model.
        fault: `[B]`, SOUND or what makes it undefined.
    """

    log_probs: jax.Array
    raw: jax.Array
    fault: jax.Array


def blank(state: StepState, prompt_lengths: jax.Array) -> Carry:
    """The rows before their first draw, with nothing reported."""
    rows, slots = state.tokens.shape
    nothing = jnp.zeros((rows, slots - state.prompt_width), jnp.float32)
    return Carry(
        state=state,
        prompt_lengths=prompt_lengths,
        terminated=jnp.zeros(rows, bool),
        behavior_log_probs=nothing,
        raw_log_probs=nothing,
        fault=jnp.full(rows, SOUND, jnp.int32),
        drawn=jnp.zeros((), jnp.int32),
    )


@jax.jit
def begin(
    state: StepState, prompt_lengths: jax.Array, logits: jax.Array, transform: Transforms, stopping: Criteria
) -> Carry:
    """Draw the first token of every row from the prompt's `logits`."""
    return draw(blank(state, prompt_lengths), logits, transform, stopping)


@jax.jit
def advance(
    ops: DecodeOps,
    carry: Carry,
    cache: Cache,
    transform: Transforms,
    stopping: Criteria,
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
        hidden, cache = ops.decode(cache, pending, positions, state.active[:, None])
        return draw(carry, ops.logits(hidden[:, 0]), transform, stopping), cache

    return jax.lax.while_loop(unfinished, step, (carry, cache))


def draw(carry: Carry, logits: jax.Array, transform: Transforms, stopping: Criteria) -> Carry:
    """Commit one token to every active row."""
    state, column = carry.state, carry.drawn
    behavior, raw, found = weighed(state, logits, transform)
    fault = jnp.where(state.active, found, carry.fault)
    alive = state.active & (fault == SOUND)
    keys = jax.vmap(jax.random.fold_in)(state.keys, state.step)
    chosen = choose(keys, behavior, certain=transform.certain)
    state = commit(state, column, chosen, alive)
    ended, terminated = stopping.judged(state, chosen)
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


def weighed(state: StepState, logits: jax.Array, transform: Transforms) -> Weighed:
    """The distribution that the chain makes of `logits` `[B, V]`."""
    scores = transform(state, logits)
    # A certain chain leaves 0 on one token and -inf on the others, which are log probabilities already.
    log_probs = scores if transform.certain else jax.nn.log_softmax(scores, axis=-1)
    return Weighed(log_probs, jax.nn.log_softmax(logits, axis=-1), fault_of(logits, scores))


def commit(state: StepState, column: jax.Array, chosen: jax.Array, alive: jax.Array) -> StepState:
    """`state` with the `chosen` tokens of the rows `alive` in a draw column, these rows alone active."""
    slot = state.prompt_width + column
    return replace(
        state,
        tokens=write(state.tokens, slot, jnp.where(alive, chosen, read(state.tokens, slot))),
        valid=write(state.valid, slot, alive),
        step=state.step + alive,
        active=alive,
    )


def choose(keys: jax.Array, log_probs: jax.Array, *, certain: bool) -> jax.Array:
    """`[B]` tokens drawn from `log_probs` `[B, V]` with the keys `[B]`; of a certain chain the one it leaves.

    The largest of log probabilities plus Gumbel noise is a draw from them. One draw decides among blocks of
    some sqrt(V) tokens by their probabilities, one among the block's tokens, and so a step makes noise for
    2 sqrt(V) of them, not V. The noise has full precision, since the cheap form never reaches events below
    1e-7.
    """
    if certain:
        return jnp.argmax(log_probs, axis=-1).astype(jnp.int32)
    width = block_width(log_probs.shape[-1])
    room = -log_probs.shape[-1] % width
    blocks = jnp.pad(log_probs, ((0, 0), (0, room)), constant_values=-jnp.inf)
    blocks = blocks.reshape(log_probs.shape[0], -1, width)
    among, inside = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    block = _drawn(among, jnp.log(jnp.sum(jnp.exp(blocks), axis=-1)))
    tokens = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * width + _drawn(inside, tokens)


def block_width(vocabulary: int) -> int:
    """Tokens of a block: the least power of two whose square holds them all."""
    return 1 << -(-(vocabulary - 1).bit_length() // 2)


def _drawn(keys: jax.Array, log_weights: jax.Array) -> jax.Array:
    """`[B]`, places drawn with the weights `[B, K]`, which need not sum to one."""

    def noise(key: jax.Array) -> jax.Array:
        return jax.random.gumbel(key, log_weights.shape[1:], jnp.float32, mode="high")

    return jnp.argmax(log_weights + jax.vmap(noise)(keys), axis=-1).astype(jnp.int32)


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
