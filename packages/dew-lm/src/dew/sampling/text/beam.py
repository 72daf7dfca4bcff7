"""`Beam`: a deterministic search for likely continuations, with the bookkeeping of transformers 5.16.1."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np
from flax import struct

from dew.sampling.decoding.parts import LogitsTransform
from dew.sampling.decoding.state import StepState
from dew.sampling.text import beam_search
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.config import Sampling
from dew.sampling.text.kinds import require_integer, require_number
from dew.sampling.text.operations import DecodeOps, DecoderState
from dew.sampling.text.strategy import Draws


@struct.dataclass
class Beam:
    """Beam search: `width` unfinished continuations of a prompt compete, and the best finished ones are kept.

    A continuation's score is the sum of its transformed log probabilities, the prompt's not included. Each
    step keeps the best `(1 + stop_ids) * width` one-token extensions of all beams together; those that a
    criterion or the budget ends and that rank among the first `width` are finished, with
    `score / length ** length_penalty`, and the best `width` of the others live on. The prompt is read once
    and its cache copied to the beams, which every step reorders.

    The chain sees log probabilities. A found path is no draw: `behavior_log_probs` are 0, and
    `raw_log_probs` are the model's own. A request's keys change nothing.

    Attributes:
        width: beams of a prompt; at most so many continuations can be asked for.
        length_penalty: above 0 prefers longer continuations, below 0 shorter ones; 0 compares sums.
        early_stopping: when a prompt's search ends. True: as soon as `width` are finished. False: when the
            best living beam, divided by its present length's penalty, is below the worst of them. `"never"`:
            when it could not get better at the full budget either.
        stop_ids: how many ids end a row, not which: so that `width` beams live on even if all of them come
            up. The ids themselves are the policy's `eos_id`.

    Raises:
        TypeError: a field of another kind, as the ids themselves for `stop_ids`.
        ValueError: a width or number of ids below 1, a penalty that is not finite, or another word for
            `early_stopping`.
    """

    width: int = struct.field(pytree_node=False, default=1)
    length_penalty: float = struct.field(pytree_node=False, default=1.0)
    early_stopping: bool | Literal["never"] = struct.field(pytree_node=False, default=False)
    stop_ids: int = struct.field(pytree_node=False, default=1)

    def __post_init__(self) -> None:
        counts = {
            "width": "how many beams a prompt has",
            "stop_ids": "how many ids end a row; which they are, Sampling(eos_id=...) says",
        }
        for name, rule in counts.items():
            value = getattr(self, name)
            require_integer(f"Beam: {name}", value, rule)
            if value < 1:
                raise ValueError(f"Beam: {name}={value!r} must be at least 1")
        require_number("Beam: length_penalty", self.length_penalty, "the power of the length")
        if not np.isfinite(self.length_penalty):
            raise ValueError(f"Beam: length_penalty={self.length_penalty} must be finite")
        if isinstance(self.early_stopping, str):
            if self.early_stopping != "never":
                raise ValueError(
                    f"Beam: early_stopping={self.early_stopping!r} must be False, True or 'never'"
                )
        elif type(self.early_stopping) is not bool:
            # 1 equals True and is no flag.
            raise TypeError(f"Beam: early_stopping={self.early_stopping!r} must be False, True or 'never'")

    def policy_chain(self, sampling: Sampling) -> tuple[LogitsTransform, ...]:
        """No transform: a search chooses by itself.

        Raises:
            ValueError: a policy that draws from a changed distribution.
        """
        unchanged = {"temperature": (0, 1), "top_k": (None,), "top_p": (1,), "min_p": (0,)}
        asked = {name: getattr(sampling, name) for name in unchanged}
        named = ", ".join(f"{name}={asked[name]}" for name in asked if asked[name] not in unchanged[name])
        if named:
            raise ValueError(
                f"sampling {named} with strategy=Beam: a search draws nothing, and the chance that a beam is "
                "kept is no token's; give sampling=Sampling(eos_id=...) without temperature and filters, or "
                "write the transforms a search should rank by as logits="
            )
        return ()

    def check(self, model: Any, *, n: int, chain: tuple[Any, ...], criteria: tuple[Any, ...]) -> None:
        """Refuse more continuations than beams, or more ids that end a row than `stop_ids`.

        Raises:
            ValueError: naming the number.
        """
        if n > self.width:
            raise ValueError(f"n={n} is above Beam(width={self.width}), and a search keeps that many at most")
        ends = {end for part in criteria for end in np.atleast_1d(getattr(part, "eos", ())).tolist()}
        if len(ends) > self.stop_ids:
            raise ValueError(
                f"{len(ends)} ids end a row, and Beam(stop_ids={self.stop_ids}) leaves too few living beams "
                f"if all come up; use stop_ids={len(ends)}"
            )
        if self.kept > self.width * model.vocab_size:
            raise ValueError(
                f"Beam(stop_ids={self.stop_ids}) keeps {self.kept} extensions a step, and {self.width} beams "
                f"over the model's {model.vocab_size} ids have fewer; lower stop_ids"
            )

    @property
    def kept(self) -> int:
        """One-token extensions that survive a step."""
        return (1 + self.stop_ids) * self.width

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
        """As `dew.sampling.Strategy` says; `Draws.scores` are the penalized ones, best first."""
        lengths = np.arange(1, state.tokens.shape[1] - state.prompt_width + 1, dtype=np.float64)
        found = beam_search.search(
            ops,
            decoder,
            state,
            transform,
            stopping,
            jax.numpy.asarray(lengths**self.length_penalty, np.float32),
            np.int32(budget),
            width=self.width,
            kept=self.kept,
            eager=self.early_stopping is True,
            hopeful=self.early_stopping == "never" and self.length_penalty > 0,
        )
        return beam_search.best(found, n=n)
