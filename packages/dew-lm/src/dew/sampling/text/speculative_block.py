"""One block of speculative decoding: draft, verify, commit, replay.

The cache of depth k has an entry for each token of a row from number k on. It reads the state before the
token of depth k - 1, the model itself being depth 0, and the token's embedding. A draft extends copies of the
caches; the caches themselves take committed tokens alone, with the states that the replay gave.

Dimensions: B rows, K tokens of a block, T new tokens, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.text import loop
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.faults import SOUND
from dew.sampling.text.operations import Cache, DecodeOps, DecoderState, at
from dew.sampling.text.verification import acceptance, accepted_prefix, residual


@struct.dataclass
class Drafting:
    """The rows of one continuation between two blocks.

    Attributes:
        carry: tokens and likelihoods; every row counts its own draws.
        decoder: the model after the committed tokens.
        caches: of the depths.
        last: `[B, E]` each, the state of a row's last token at the model and at every depth but the deepest.
        blocks: how many ran.
    """

    carry: loop.Carry
    decoder: DecoderState
    caches: tuple[Cache, ...]
    last: tuple[jax.Array, ...]
    blocks: jax.Array


class Draft(NamedTuple):
    """What stands in a block before the model has seen it.

    Attributes:
        tokens: `[B]` each, K of them: the model's own draw and the proposals.
        prefixes: the step states before the block and after each of its tokens, K + 1.
        log_probs: `[B, V]` each, the distributions of the K - 1 proposals.
        offered: `[B]` each, whether there is such a proposal.
    """

    tokens: list[jax.Array]
    prefixes: list[StepState]
    log_probs: list[jax.Array]
    offered: list[jax.Array]


@partial(jax.jit, static_argnames=("depths",))
def read_depths(ops: DecodeOps, decoder: DecoderState, state: StepState, *, depths: int) -> Drafting:
    """The rows before their first block: every depth has read the prompts.

    Args:
        ops: of a model with prediction depths.
        decoder: after the prompts, with `prompt_states`.
        state: before the first draw.
        depths: how many are used.
    """
    states = decoder.prompt_states
    assert states is not None, "the strategy asks for the prompts' states"
    tokens, lengths = state.prompt_history()
    rows, width = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    capacity = min(state.tokens.shape[1], int(ops.model.max_seq_len))
    last, caches = [decoder.hidden], list[Cache]()
    for depth in range(1, depths + 1):
        before = _behind(jnp.zeros_like(decoder.hidden), states[:, :-1])
        valid = (positions >= depth) & (positions < lengths[:, None])
        empty = ops.depth_cache(rows, capacity)
        states, cache = ops.depth(depth, empty, tokens, before, positions, valid)
        caches.append(cache)
        last.append(at(states, lengths - 1))
    carry = loop.blank(state, decoder.lengths)
    return Drafting(
        carry=replace(carry, drawn=state.step),
        decoder=replace(decoder, prompt_states=None),
        caches=tuple(caches),
        last=tuple(last[:depths]),
        blocks=jnp.zeros((), jnp.int32),
    )


@partial(jax.jit, static_argnames=("block",))
def draw_blocks(
    ops: DecodeOps,
    drafting: Drafting,
    transform: Transforms,
    stopping: Criteria,
    budget: jax.Array,
    confidence: jax.Array,
    *,
    block: int,
) -> Drafting:
    """Blocks until every row has ended or drawn `budget` tokens.

    A block gives at least two tokens to a row that goes on, so `ceil(budget / 2)` blocks are the most.
    """

    def step(drafting: Drafting) -> Drafting:
        state = drafting.carry.state
        keys = _block_keys(state, block + 2)
        first = loop.weighed(state, drafting.decoder.logits, transform)
        draft = _drafted(ops, drafting, first, transform, confidence, keys, block)
        laws = _verified(ops, drafting, draft, first, transform)
        final, token = _settled(draft, laws, keys, certain=transform.certain)
        carry, tokens = _committed(drafting.carry, draft, laws, final, token, stopping, budget)
        return _replayed(ops, drafting, carry, tokens)

    return jax.lax.while_loop(lambda drafting: jnp.any(drafting.carry.state.active), step, drafting)


def _block_keys(state: StepState, count: int) -> list[jax.Array]:
    """`[B]` keys each, of their own for every draw of a block: no two blocks of a row begin at one step."""
    base = jax.vmap(jax.random.fold_in)(state.keys, state.step)
    return [jax.vmap(jax.random.fold_in, (0, None))(base, index) for index in range(count)]


def _drafted(
    ops: DecodeOps,
    drafting: Drafting,
    first: loop.Weighed,
    transform: Transforms,
    confidence: jax.Array,
    keys: Sequence[jax.Array],
    block: int,
) -> Draft:
    """The model's own draw, and a proposal of every depth behind it."""
    state, lengths = drafting.carry.state, drafting.decoder.lengths
    active = state.active
    tokens = [loop.choose(keys[0], first.log_probs, certain=transform.certain)]
    prefixes = [state, loop.commit(state, state.step, tokens[0], active)]
    laws, offered = list[jax.Array](), list[jax.Array]()
    goes_on = active
    before = drafting.last[0][:, None]
    for depth in range(1, block):
        positions = lengths[:, None] + jnp.arange(depth, dtype=jnp.int32)
        valid = active[:, None] & (positions >= depth)
        states, _ = ops.depth(
            depth, drafting.caches[depth - 1], jnp.stack(tokens, axis=1), before, positions, valid
        )
        logits = ops.logits(states[:, -1])
        law = loop.weighed(prefixes[-1], logits, transform)
        token = loop.choose(keys[depth], law.log_probs, certain=transform.certain)
        offered.append(goes_on & (law.fault == SOUND))
        belief = loop.weighed(prefixes[-1], logits, transform.weighing).log_probs
        goes_on = offered[-1] & (jnp.exp(loop.pick(belief, token)) >= confidence)
        laws.append(law.log_probs)
        tokens.append(token)
        prefixes.append(loop.commit(prefixes[-1], prefixes[-1].step, token, active))
        if depth + 1 < block:
            before = _behind(drafting.last[depth], states)
    return Draft(tokens, prefixes, laws, offered)


def _verified(
    ops: DecodeOps, drafting: Drafting, draft: Draft, first: loop.Weighed, transform: Transforms
) -> list[loop.Weighed]:
    """The model's distributions at each of the block's tokens and behind it, from one forward pass."""
    tokens = jnp.stack(draft.tokens, axis=1)
    positions = drafting.decoder.lengths[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    valid = jnp.broadcast_to(drafting.carry.state.active[:, None], tokens.shape)
    hidden, _ = ops.decode(drafting.decoder.cache, tokens, positions, valid)
    logits = ops.logits(hidden)
    behind = [
        loop.weighed(prefix, logits[:, index], transform) for index, prefix in enumerate(draft.prefixes[1:])
    ]
    return [first, *behind]


def _settled(
    draft: Draft, laws: Sequence[loop.Weighed], keys: Sequence[jax.Array], *, certain: bool
) -> tuple[jax.Array, jax.Array]:
    """`[B]` each: at which place of the block the model's last draw stands, and the token drawn there."""
    proposals = len(draft.log_probs)
    target = jnp.stack([law.log_probs for law in laws[1:]], axis=1)
    drafted = jnp.stack(draft.log_probs, axis=1)
    sound = jnp.stack([law.fault == SOUND for law in laws[1:]], axis=1)
    offered = jnp.stack(draft.offered, axis=1)
    chances = acceptance(target[:, :-1], drafted, jnp.stack(draft.tokens[1:], axis=1))
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (proposals,)))(keys[-1])
    kept = accepted_prefix(chances, offered & sound[:, :-1], uniforms)
    own = at(target, kept)
    place = jnp.minimum(kept, proposals - 1)
    rejected = (kept < proposals) & jnp.take_along_axis(offered, place[:, None], axis=1)[:, 0]
    law = jnp.where(rejected[:, None], residual(own, at(drafted, place)), own)
    return kept + 1, loop.choose(keys[-2], law, certain=certain)


def _committed(
    carry: loop.Carry,
    draft: Draft,
    laws: Sequence[loop.Weighed],
    final: jax.Array,
    token: jax.Array,
    stopping: Criteria,
    budget: jax.Array,
) -> tuple[loop.Carry, jax.Array]:
    """The block's tokens one after another, as far as rows go on; and the tokens themselves, `[B, K + 1]`."""
    tokens: list[jax.Array] = []
    for place, law in enumerate(laws):
        proposed = draft.tokens[place] if place < len(draft.tokens) else token
        chosen = jnp.where(final == place, token, proposed)
        here = carry.state.active & (place <= final) & (carry.state.step < budget)
        carry = _with_token(carry, chosen, law, here, stopping)
        tokens.append(chosen)
    active = carry.state.active & (carry.state.step < budget)
    return replace(carry, state=replace(carry.state, active=active)), jnp.stack(tokens, axis=1)


def _with_token(
    carry: loop.Carry, token: jax.Array, law: loop.Weighed, here: jax.Array, stopping: Criteria
) -> loop.Carry:
    """`carry` with one token more in the rows `here`, its likelihoods, and the rows that end with it."""
    state, column = carry.state, carry.drawn
    alive = here & (law.fault == SOUND)
    written = loop.commit(state, column, token, alive)
    ended, terminated = stopping.judged(written, token)
    goes_on = jnp.where(here, alive & ~ended, state.active)

    def noted(buffer: jax.Array, log_probs: jax.Array) -> jax.Array:
        held = loop.read(buffer, jnp.minimum(column, buffer.shape[1] - 1))
        return loop.write(buffer, column, jnp.where(alive, loop.pick(log_probs, token), held))

    return replace(
        carry,
        state=replace(written, active=goes_on),
        terminated=carry.terminated | (alive & terminated),
        behavior_log_probs=noted(carry.behavior_log_probs, law.log_probs),
        raw_log_probs=noted(carry.raw_log_probs, law.raw),
        fault=jnp.where(here, law.fault, carry.fault),
        drawn=written.step,
    )


def _replayed(ops: DecodeOps, drafting: Drafting, carry: loop.Carry, tokens: jax.Array) -> Drafting:
    """The model and the depths after the committed tokens, read into the caches of before the block."""
    count = carry.state.step - drafting.carry.state.step
    steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    valid = (steps < count[:, None]) & carry.state.active[:, None]
    positions = drafting.decoder.lengths[:, None] + steps
    decoder, states = ops.extend(drafting.decoder, tokens, valid)
    last, caches = [decoder.hidden], list[Cache]()
    for depth, cache in enumerate(drafting.caches, start=1):
        before = _behind(drafting.last[depth - 1], states[:, :-1])
        states, cache = ops.depth(depth, cache, tokens, before, positions, valid & (positions >= depth))
        caches.append(cache)
        if depth < len(drafting.last):
            newest = at(states, jnp.maximum(count - 1, 0))
            last.append(jnp.where(valid[:, :1], newest, drafting.last[depth]))
    return Drafting(carry, decoder, tuple(caches), tuple(last), drafting.blocks + 1)


def _behind(first: jax.Array, states: jax.Array) -> jax.Array:
    """`[B, T + 1, E]`: `first` `[B, E]` and then `states` `[B, T, E]`."""
    return jnp.concatenate([first[:, None], states], axis=1)
