"""The contract of a decoding strategy: from the states after the prompts to finished continuations.

Dimensions: B prompt rows, n continuations of each, R = B * n with a prompt's continuations together, N draw
slots, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import jax
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.operations import DecodeOps, DecoderState


@struct.dataclass
class Draws:
    """Finished continuations.

    Attributes:
        tokens: `[R, N]`, the pad id after a row's end.
        lengths: `[R]` drawn tokens.
        terminated: `[R]`, whether the row ended by itself and not by a budget.
        behavior_log_probs: `[R, N]` float32 under the distribution that drew each token; 0 where the strategy
            draws nothing, and after a row's end.
        raw_log_probs: `[R, N]` float32 under the model's own distribution; 0 after a row's end.
        faults: `[R]` of `dew.sampling.text.faults`; a row that is not sound makes the request raise.
        scores: `[R]`, what a search ranked the rows by, or None.
    """

    tokens: jax.Array
    lengths: jax.Array
    terminated: jax.Array
    behavior_log_probs: jax.Array
    raw_log_probs: jax.Array
    faults: jax.Array
    scores: jax.Array | None = None


class Strategy(Protocol):
    """How a request's tokens are chosen. `Sample`, `Beam` and `Speculative` are such; so is any callable.

    It is called on the host and may compile what it likes: every argument but `budget` and `n` is a pytree.
    On a mesh the rows of all arrays are split over devices, and every process of a pool makes the same call.

    It may also define
    - `policy_chain(sampling)`, the transforms where the request names none, in place of
      `sampling.transforms()`;
    - `check(model, *, n, chain, criteria)`, which refuses a request by `ValueError` before anything is
      compiled: `chain` and `criteria` are tuples of the resolved parts;
    - `reads_prompt_states = True`, to be given `DecoderState.prompt_states`.
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
        """Continue every prompt `n` times by at most `budget` tokens.

        Args:
            decoder: the model after the prompts; its logits are those of the first token.
            state: the rows before their first draw, with draw slots for the budget at least.
            ops: of the model.
            transform: the whole chain as one `LogitsTransform`: scores `[rows, V]` from logits.
            stopping: all criteria as one `Stopping`; call it after every committed token with the state that
                holds it. `stopping.judged` also says which rows a criterion ended that is no budget.
            budget: tokens of a row.
            n: continuations of a prompt.
        """
        ...
