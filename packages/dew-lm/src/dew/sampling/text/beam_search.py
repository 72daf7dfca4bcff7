"""The steps of a beam search, after `_beam_search` of transformers 5.16.1.

Rows of the decoder and of the step state are the beams, those of a prompt together. What cannot be chosen any
more has `DEAD` added to its score, as in the reference: sums and comparisons are then the same.

Dimensions: B prompts, W beams, K kept extensions, N draw slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.filters import drawable
from dew.sampling.decoding.state import StepState
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.faults import CHAIN_UNDEFINED, EXHAUSTED, MODEL_UNDEFINED, SOUND
from dew.sampling.text.loop import commit
from dew.sampling.text.operations import DecodeOps, DecoderState, members_at
from dew.sampling.text.strategy import Draws

DEAD = -1.0e9
"""Added to the score of what is out of the race."""


@struct.dataclass
class Finished:
    """The best finished continuations of each prompt, best first.

    Attributes:
        tokens: `[B, W, N]`.
        raw: `[B, W, N]` log probabilities of the model.
        scores: `[B, W]`, penalized; `DEAD` where there is none yet.
        lengths: `[B, W]`.
        real: `[B, W]`, whether there is one.
        terminated: `[B, W]`, ended by a criterion that is no budget.
    """

    tokens: jax.Array
    raw: jax.Array
    scores: jax.Array
    lengths: jax.Array
    real: jax.Array
    terminated: jax.Array


@struct.dataclass
class Search:
    """A search between two steps.

    Attributes:
        decoder: the model after the living beams, `[B * W]` rows.
        state: the living beams' tokens, `[B * W]` rows.
        raw: `[B, W, N]`, theirs.
        scores: `[B, W]`, sums of transformed log probabilities.
        finished: of every prompt.
        open: `[B]`, prompts whose search goes on.
        fault: `[B]`.
        count: tokens of each living beam.
    """

    decoder: DecoderState
    state: StepState
    raw: jax.Array
    scores: jax.Array
    finished: Finished
    open: jax.Array
    fault: jax.Array
    count: jax.Array


@struct.dataclass
class Extensions:
    """The kept one-token extensions of all beams of each prompt, best first.

    Attributes:
        state: `[B * K]` rows, the token committed.
        raw: `[B, K, N]`.
        scores: `[B, K]` sums.
        parents: `[B, K]`, the beam each extends.
        tokens: `[B, K]`.
        ended: `[B, K]`, by a criterion or the budget.
        terminated: `[B, K]`, by a criterion that is no budget.
    """

    state: StepState
    raw: jax.Array
    scores: jax.Array
    parents: jax.Array
    tokens: jax.Array
    ended: jax.Array
    terminated: jax.Array


@partial(jax.jit, static_argnames=("width", "kept", "eager", "hopeful"))
def search(
    ops: DecodeOps,
    decoder: DecoderState,
    state: StepState,
    transform: Transforms,
    stopping: Criteria,
    penalties: jax.Array,
    budget: jax.Array,
    *,
    width: int,
    kept: int,
    eager: bool,
    hopeful: bool,
) -> Search:
    """Search until no prompt's finished continuations can get better.

    Args:
        ops: of the model.
        decoder: after the prompts, B rows.
        state: before the first draw, B rows.
        transform: of log probabilities.
        stopping: criteria.
        penalties: `[N]`, what the score of a continuation of 1, 2, ... tokens is divided by.
        budget: tokens of a row.
        width: W.
        kept: K.
        eager: close a prompt as soon as W continuations are finished.
        hopeful: judge a living beam by the penalty of the whole budget.
    """
    step = partial(
        _step,
        ops,
        transform=transform,
        stopping=stopping,
        penalties=penalties,
        budget=budget,
        kept=kept,
        eager=eager,
        hopeful=hopeful,
    )

    def go_on(search: Search) -> Search:
        pending = jnp.repeat(search.open, width)
        newest = _newest(search.state, search.count)
        decoder, _ = ops.extend(search.decoder, newest[:, None], pending[:, None])
        return step(replace(search, decoder=decoder))

    start = step(_start(ops, decoder, state, width))
    return jax.lax.while_loop(lambda search: jnp.any(search.open), go_on, start)


@partial(jax.jit, static_argnames=("n",))
def best(search: Search, *, n: int) -> Draws:
    """The first `n` finished continuations of every prompt."""
    finished = jax.tree.map(lambda leaf: leaf[:, :n].reshape(-1, *leaf.shape[2:]), search.finished)
    missing = jnp.where(finished.real & (finished.scores > DEAD / 2), SOUND, EXHAUSTED)
    told = jnp.repeat(search.fault, n)
    # A prompt that only fills up a mesh is not searched.
    searched = jnp.repeat(search.state.active.reshape(search.scores.shape)[:, 0], n)
    return Draws(
        tokens=finished.tokens,
        lengths=finished.lengths,
        terminated=finished.terminated,
        behavior_log_probs=jnp.zeros_like(finished.raw),
        raw_log_probs=finished.raw,
        faults=jnp.where(told != SOUND, told, jnp.where(searched, missing, SOUND)).astype(jnp.int32),
        scores=finished.scores,
    )


def _start(ops: DecodeOps, decoder: DecoderState, state: StepState, width: int) -> Search:
    """Every prompt's beams are copies of it, and all but the first are dead: none is counted twice."""
    rows, slots = state.tokens.shape
    beams = ops.repeat(state, width)
    index = jnp.tile(jnp.arange(width, dtype=jnp.uint32), rows)
    beams = replace(beams, keys=jax.vmap(jax.random.fold_in)(beams.keys, index))
    shape = (rows, width, slots - state.prompt_width)
    nothing = jnp.zeros(shape, jnp.float32)
    scores = jnp.full(shape[:2], DEAD, jnp.float32)
    drawn = beams.tokens[:, state.prompt_width :].reshape(shape)
    none = jnp.zeros(shape[:2], bool)
    return Search(
        decoder=ops.repeat(replace(decoder, prompt_states=None), width),
        state=beams,
        raw=nothing,
        scores=scores.at[:, 0].set(jnp.where(state.active, 0.0, DEAD)),
        finished=Finished(drawn, nothing, scores, jnp.zeros(shape[:2], jnp.int32), none, none),
        open=state.active,
        fault=jnp.full(rows, SOUND, jnp.int32),
        count=jnp.zeros((), jnp.int32),
    )


def _step(
    ops: DecodeOps,
    search: Search,
    *,
    transform: Transforms,
    stopping: Criteria,
    penalties: jax.Array,
    budget: jax.Array,
    kept: int,
    eager: bool,
    hopeful: bool,
) -> Search:
    """One token more for every living beam, chosen from `decoder.logits`."""
    raw = jax.nn.log_softmax(search.decoder.logits, axis=-1)
    scores = transform(search.state, raw)
    fault = _fault(search, scores)
    found = _extensions(ops, search, raw, scores, stopping, budget, kept)
    finished = _with_finished(search, found, penalties, eager)
    living = jax.lax.top_k(found.scores + found.ended * DEAD, search.scores.shape[1])[1]
    count = search.count + 1

    def chosen(leaf: jax.Array) -> jax.Array:
        return members_at(leaf, living)

    alive = chosen(found.scores + found.ended * DEAD)
    # What the best living beam may still reach against the worst finished one.
    hope = alive[:, 0] / penalties[(budget if hopeful else count) - 1]
    worst = jnp.where(finished.real, jnp.min(finished.scores, axis=1, keepdims=True), DEAD)
    open_ = search.open & jnp.any(hope[:, None] > worst, axis=1) & ~jnp.all(found.ended, axis=1)
    if eager:
        open_ = open_ & ~jnp.all(finished.real, axis=1)
    return Search(
        decoder=ops.reparent(search.decoder, chosen(found.parents)),
        state=ops.reparent(found.state, living),
        raw=chosen(found.raw),
        scores=alive,
        finished=finished,
        open=open_ & (fault == SOUND),
        fault=fault,
        count=count,
    )


def _fault(search: Search, scores: jax.Array) -> jax.Array:
    """`[B]`: a living beam without a distribution, or scores that leave no extension at all."""
    shape = search.scores.shape
    living = (search.scores > DEAD / 2) & search.open[:, None]
    model = living & ~drawable(search.decoder.logits).reshape(shape)
    finite = jnp.isfinite(scores)
    undefined = ~jnp.all(finite | jnp.isneginf(scores), axis=-1).reshape(shape)
    stuck = search.open & ~jnp.any(living & jnp.any(finite, axis=-1).reshape(shape), axis=1)
    chain = jnp.any(living & undefined, axis=1) | stuck
    fault = jnp.where(chain, CHAIN_UNDEFINED, search.fault)
    return jnp.where(jnp.any(model, axis=1), MODEL_UNDEFINED, fault).astype(jnp.int32)


def _extensions(
    ops: DecodeOps,
    search: Search,
    raw: jax.Array,
    scores: jax.Array,
    stopping: Criteria,
    budget: jax.Array,
    kept: int,
) -> Extensions:
    prompts, width = search.scores.shape
    vocab = scores.shape[-1]
    sums = scores.reshape(prompts, width, vocab) + search.scores[:, :, None]
    top, index = jax.lax.top_k(sums.reshape(prompts, width * vocab), kept)
    parents, tokens = index // vocab, (index % vocab).astype(jnp.int32)
    column = search.count
    flat = tokens.reshape(-1)
    state = ops.reparent(search.state, parents)
    state = commit(state, column, flat, state.active)
    gained = jnp.take_along_axis(raw.reshape(prompts, width * vocab), index, axis=1)
    paths = members_at(search.raw, parents)
    ended, terminated = stopping.judged(state, flat)
    return Extensions(
        state=state,
        raw=jax.lax.dynamic_update_slice_in_dim(paths, gained[..., None], column, axis=2),
        scores=top,
        parents=parents,
        tokens=tokens,
        ended=(ended | (column + 1 >= budget)).reshape(tokens.shape),
        terminated=terminated.reshape(tokens.shape),
    )


def _with_finished(search: Search, found: Extensions, penalties: jax.Array, eager: bool) -> Finished:
    """The finished continuations with those of this step among them, the best W kept."""
    held = search.finished
    prompts, width = held.scores.shape
    kept = found.scores.shape[1]
    among = found.ended & (jnp.arange(kept) < width)
    scores = found.scores / penalties[search.count]
    closed = ~search.open
    if eager:
        closed = closed | jnp.all(held.real, axis=1)
    scores = scores + closed[:, None] * DEAD + ~among * DEAD
    drawn = found.state.tokens[:, found.state.prompt_width :].reshape(prompts, kept, -1)
    fresh = Finished(
        tokens=drawn,
        raw=found.raw,
        scores=scores,
        lengths=jnp.full((prompts, kept), search.count + 1),
        real=among & ~closed[:, None],
        terminated=found.terminated,
    )
    merged = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), held, fresh)
    places = jax.lax.top_k(merged.scores, width)[1]
    return jax.tree.map(lambda leaf: members_at(leaf, places), merged)


def _newest(state: StepState, count: jax.Array) -> jax.Array:
    """`[rows]`, the token drawn last."""
    return jax.lax.dynamic_index_in_dim(state.tokens, state.prompt_width + count - 1, axis=1, keepdims=False)
