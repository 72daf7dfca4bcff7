"""`Sample`: every row drawn by itself, token after token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.text import loop
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.operations import DecodeOps, DecoderState
from dew.sampling.text.strategy import Draws


@struct.dataclass
class Sample:
    """Draw every row independently; what a request without a strategy runs.

    Continuation 0 draws with the row's key and continuation j with j folded into it. They run one after
    another over the prompt's cache, so that the memory of one serves the next.
    """

    def __call__(
        self,
        decoder: DecoderState,
        state: StepState,
        ops: DecodeOps,
        transform: Transforms,
        stopping: Criteria,
        budget: int,
        n: int,
        /,
    ) -> Draws:
        """As `dew.sampling.Strategy` says."""
        carries: list[loop.Carry] = []
        for index in range(n):
            carry = first_draw(decoder, state, transform, stopping, index)
            if budget > 1:
                carry, _ = loop.advance(ops, carry, decoder.cache, transform, stopping, np.int32(budget))
            carries.append(carry)
        return draws_of(carries)


def first_draw(
    decoder: DecoderState, state: StepState, transform: Transforms, stopping: Criteria, continuation: int
) -> loop.Carry:
    """The rows of one continuation with their first token."""
    state = replace(state, keys=continuation_keys(state.keys, continuation))
    return loop.begin(state, decoder.lengths, decoder.logits, transform, stopping)


def continuation_keys(keys: jax.Array, continuation: int) -> jax.Array:
    """The keys `[B]` that a continuation draws with."""
    if continuation == 0:
        return keys
    return jax.vmap(jax.random.fold_in, (0, None))(keys, continuation)


@jax.jit
def draws_of(carries: Sequence[loop.Carry]) -> Draws:
    """The continuations of every prompt together."""

    def rows(leaves: Sequence[jax.Array]) -> jax.Array:
        return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])

    width = carries[0].state.prompt_width
    return Draws(
        tokens=rows([carry.state.tokens[:, width:] for carry in carries]),
        lengths=rows([carry.state.step for carry in carries]),
        terminated=rows([carry.terminated for carry in carries]),
        behavior_log_probs=rows([carry.behavior_log_probs for carry in carries]),
        raw_log_probs=rows([carry.raw_log_probs for carry in carries]),
        faults=rows([carry.fault for carry in carries]),
    )
