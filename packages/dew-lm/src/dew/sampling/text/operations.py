"""What a strategy may ask of a model, and what the model holds of every row between two questions.

Dimensions: B rows, W packed prompt slots, C cache slots, T new tokens, E model width, V vocabulary. The first
axis of every array is the row, a cache's included, whatever the model keeps in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from dew.nn.sharding import split_rows
from dew.sampling.decoding.state import StepState

type Cache = Any
type Variables = Mapping[str, Any]


@struct.dataclass
class DecoderState:
    """A model after the tokens it has read. Nothing changes it: a kept value is a saved cache.

    Attributes:
        cache: as the model's `init_cache` makes it.
        lengths: `[B]` tokens read.
        hidden: `[B, E]`, the state of each row's last token.
        logits: `[B, V]` after it, float32 or wider.
        prompt_states: `[B, W, E]`, the states of the packed prompt, or None where nobody asked for them.
    """

    cache: Cache
    lengths: jax.Array
    hidden: jax.Array
    logits: jax.Array
    prompt_states: jax.Array | None = None


@struct.dataclass
class DecodeOps:
    """The operations of one model over its weights; a pytree, so that a compiled function can take it.

    Attributes:
        model: a decoder with `decode`, `init_cache` and `head_weight`; one with prediction depths also has
            `num_nextn_predict_layers`, `mtp_decode` and `init_mtp_cache`.
        params: the complete variables tree.
    """

    model: Any = struct.field(pytree_node=False)
    params: Variables

    def prefill(
        self, tokens: jax.Array, lengths: jax.Array, *, capacity: int, keep_states: bool = False
    ) -> DecoderState:
        """Read packed prompts.

        Args:
            tokens: `[B, W]`, each row's prompt from slot 0.
            lengths: `[B]` prompt tokens.
            capacity: C.
            keep_states: fill `prompt_states`.
        """
        rows, width = tokens.shape
        slots = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
        hidden, cache = self.decode(
            self.model.init_cache(rows, capacity), tokens, slots, slots < lengths[:, None]
        )
        last = at(hidden, lengths - 1)
        return DecoderState(cache, lengths, last, self.logits(last), hidden if keep_states else None)

    def decode(
        self, cache: Cache, tokens: jax.Array, positions: jax.Array, valid: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """The states `[B, T, E]` of new tokens and the cache with the valid ones in it.

        Args:
            cache: of the tokens before.
            tokens: `[B, T]`.
            positions: `[B, T]`, where each stands in its row.
            valid: `[B, T]`; a token that is not valid writes nothing.
        """
        rows = jax.tree.map(split_rows, (tokens, positions, valid))
        hidden, cache = self.model.apply(self.params, *rows, cache, method="decode")
        return split_rows(hidden), cache

    def extend(
        self, state: DecoderState, tokens: jax.Array, valid: jax.Array
    ) -> tuple[DecoderState, jax.Array]:
        """Read further tokens behind those that `state` holds.

        A row without a valid token stays as it is. To try tokens and then keep some of them, extend one state
        twice: `state` is the saved cache, and the second call replays the prefix that was kept.

        Args:
            state: before.
            tokens: `[B, T]`.
            valid: `[B, T]`, in each row a number of true values and then false ones.

        Returns:
            The state after each row's last valid token, and the states `[B, T, E]` of all.
        """
        steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        hidden, cache = self.decode(state.cache, tokens, state.lengths[:, None] + steps, valid)
        count = jnp.sum(valid, axis=1, dtype=jnp.int32)
        last = at(hidden, jnp.maximum(count - 1, 0))
        moved = (count > 0)[:, None]
        return DecoderState(
            cache,
            state.lengths + count,
            jnp.where(moved, last, state.hidden),
            jnp.where(moved, self.logits(last), state.logits),
            state.prompt_states,
        ), hidden

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits `[..., V]` of states `[..., E]`, capped as the model caps them, float32 or wider."""
        weight = self.model.head_weight(self.params).astype(hidden.dtype)
        logits = jnp.dot(
            hidden,
            weight,
            precision=getattr(self.model, "precision", None),
            preferred_element_type=jnp.promote_types(hidden.dtype, "float32"),
        )
        cap = getattr(self.model, "final_logit_softcap", None)
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def depth_cache(self, rows: int, capacity: int) -> Cache:
        """The cache of one prediction depth, without tokens."""
        return self.model.init_mtp_cache(rows, capacity)

    def depth(
        self,
        number: int,
        cache: Cache,
        tokens: jax.Array,
        previous: jax.Array,
        positions: jax.Array,
        valid: jax.Array,
    ) -> tuple[jax.Array, Cache]:
        """One prediction depth over new tokens: its states `[B, T, E]`, which `logits` reads, and its cache.

        Args:
            number: which depth, from 1.
            cache: its own, of the tokens before.
            tokens: `[B, T]`.
            previous: `[B, T, E]`, for each token the state before it of the depth before, or of the model.
            positions: `[B, T]`, where each token stands in its row.
            valid: `[B, T]`; a token that is not valid writes nothing, and a row's first `number` never are.
        """
        rows = jax.tree.map(split_rows, (tokens, previous, positions, valid))
        states, cache = self.model.apply(self.params, number, *rows, cache, method="mtp_decode")
        return split_rows(states), cache

    def repeat[T](self, rows: T, times: int) -> T:
        """Any tree of rows with each of them `times` times in a row."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), rows)

    def reparent[T](self, rows: T, parents: jax.Array) -> T:
        """Let rows continue from others of their group.

        Args:
            rows: any tree of rows, those of a group in a row.
            parents: `[groups, K]`, for each new row the place in its group of the one it continues. K need
                not be the size the groups have now.
        """
        groups, count = parents.shape

        def move(leaf: jax.Array) -> jax.Array:
            grouped = leaf.reshape(groups, -1, *leaf.shape[1:])
            return members_at(grouped, parents).reshape(groups * count, *leaf.shape[1:])

        return jax.tree.map(move, rows)


def at(values: jax.Array, slots: jax.Array) -> jax.Array:
    """`[B, ...]`, of `values` `[B, T, ...]` each row's own slot `[B]`."""
    return jnp.take_along_axis(values, slots[:, None, None], axis=1)[:, 0]


def members_at(groups: jax.Array, places: jax.Array) -> jax.Array:
    """`[B, K, ...]`, of `groups` `[B, M, ...]` each group's members at its own `places` `[B, K]`."""
    return jax.vmap(lambda members, chosen: members[chosen])(groups, places)


@partial(jax.jit, static_argnames=("capacity", "slots", "keep_states"))
def read_prompts(
    ops: DecodeOps,
    tokens: jax.Array,
    lengths: jax.Array,
    keys: jax.Array,
    active: jax.Array,
    pad_id: jax.Array,
    budget: jax.Array,
    *,
    capacity: int,
    slots: int,
    keep_states: bool,
) -> tuple[DecoderState, StepState]:
    """Both states after the packed prompts `[B, W]`, with room for `slots` drawn tokens."""
    state = prompt_state(tokens, lengths, keys, active, pad_id, budget, slots=slots)
    return ops.prefill(tokens, lengths, capacity=capacity, keep_states=keep_states), state


def prompt_state(
    tokens: jax.Array,
    lengths: jax.Array,
    keys: jax.Array,
    active: jax.Array,
    pad_id: jax.Array,
    budget: jax.Array,
    *,
    slots: int,
) -> StepState:
    """The rows before their first draw; prompts end where the draw slots begin.

    `budget`, of every row or `[B]`, is what a row may draw; the slots are rounded up.
    """
    rows, width = tokens.shape
    shift = jnp.arange(width) - (width - lengths)[:, None]
    prompt = jnp.where(shift >= 0, jnp.take_along_axis(tokens, jnp.maximum(shift, 0), axis=1), pad_id)
    return StepState(
        tokens=jnp.concatenate([prompt, jnp.full((rows, slots), pad_id)], axis=1).astype(jnp.int32),
        valid=jnp.concatenate([shift >= 0, jnp.zeros((rows, slots), bool)], axis=1),
        step=jnp.zeros(rows, jnp.int32),
        active=active,
        keys=keys,
        prompt_width=width,
        budget=jnp.broadcast_to(jnp.asarray(budget, jnp.int32), (rows,)),
    )
