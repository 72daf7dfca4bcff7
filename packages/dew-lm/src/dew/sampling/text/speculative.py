"""`Speculative`: the model's own prediction depths draft tokens, and the model verifies them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.text import speculative_block
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.kinds import require_integer, require_number
from dew.sampling.text.loop import Carry
from dew.sampling.text.operations import DecodeOps, DecoderState
from dew.sampling.text.sample import continuation_keys, draws_of
from dew.sampling.text.strategy import Draws


@struct.dataclass
class Speculative:
    """Draw several tokens for two forward passes of the model, distributed exactly as `Sample` draws them.

    A block begins with an ordinary draw from the model. Each of the `block - 1` depths then proposes a token,
    the model reads all of them at once, and they are kept as `dew.sampling.text.verification` says; behind
    the kept ones stands one more draw of the model. A block so gives between 2 and `block + 1` tokens. A
    second pass replays the ones that were kept into the cache of before, since a recurrent layer could not
    take the others back.

    The tokens are not those `Sample` draws at the same key; with a greedy chain they are. Both likelihoods
    are the model's, after the chain and before it; what the depths held likely is not recorded. Continuations
    of a prompt run one after another, as with `Sample`.

    Attributes:
        block: tokens the model verifies at once; it uses `block - 1` prediction depths.
        confidence: a proposal the draft held less likely is the block's last; with a greedy chain, how
            likely is what the chain says before its choice. 0 proposes with every depth.

    Raises:
        TypeError: a block that is no integer, or a confidence that is no number.
        ValueError: a block below 2, or a confidence outside [0, 1].
    """

    block: int = struct.field(pytree_node=False, default=4)
    confidence: float = struct.field(pytree_node=False, default=0.0)

    reads_prompt_states = True

    def __post_init__(self) -> None:
        require_integer("Speculative: block", self.block, "how many tokens are verified at once")
        require_number("Speculative: confidence", self.confidence, "a probability")
        if self.block < 2:
            raise ValueError(
                f"Speculative: block={self.block} must be at least 2: a draw of the model and a proposal; "
                "use Sample() for one token at a time"
            )
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"Speculative: confidence={self.confidence} must lie in [0, 1]")

    def check(self, model: Any, *, n: int, chain: tuple[Any, ...], criteria: tuple[Any, ...]) -> None:
        """Refuse a model without prediction depths, or with fewer than the block needs.

        Raises:
            ValueError: naming the number.
        """
        depths = getattr(model, "num_nextn_predict_layers", 0)
        if not depths:
            raise ValueError(
                "strategy=Speculative drafts with prediction depths, and the model has none "
                "(num_nextn_predict_layers=0); leave the strategy out"
            )
        if self.block - 1 > depths:
            raise ValueError(
                f"Speculative(block={self.block}) needs {self.block - 1} prediction depths, and the model "
                f"has {depths}; use block={depths + 1} at most"
            )

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
        start = speculative_block.read_depths(ops, decoder, state, depths=self.block - 1)
        carries: list[Carry] = []
        for index in range(n):
            rows = replace(start.carry.state, keys=continuation_keys(state.keys, index))
            drafting = speculative_block.draw_blocks(
                ops,
                replace(start, carry=replace(start.carry, state=rows)),
                transform,
                stopping,
                np.int32(budget),
                np.float32(self.confidence),
                block=self.block,
            )
            carries.append(drafting.carry)
        return draws_of(carries)
