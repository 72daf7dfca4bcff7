"""`Responder`: a policy that answers prompts, and the reward that judges the answers.

Dimensions: R prompt rows, P prompt slots, N response slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from dew.data.text import Tokenizer
from dew.nn.inputs import ModelInputs
from dew.objectives.base import Batch, Variables, thaw
from dew.objectives.rl.batch import PROMPT_KEY, PROMPT_MASK_KEY
from dew.objectives.rl.rewards import Reward, scored
from dew.sampling.text import Generation, Sampling, generate
from dew.sampling.text.checks import check_model

type Rows = Int[np.ndarray, "R P"]


class Answers(NamedTuple):
    """Drawn responses with their texts and rewards.

    Attributes:
        drawn: the record of the draws, on the host.
        prompts: the prompts as text.
        responses: without the token that ended them.
        rewards: [R] float32, NaN where the reward abstained.
    """

    drawn: Generation
    prompts: list[str]
    responses: list[str]
    rewards: Float[np.ndarray, " R"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Responder:
    """Draws responses from given weights and judges them.

    Attributes:
        model: the policy's decoder.
        tokenizer: decodes prompts and responses.
        reward: judges the texts.
        sampling: how tokens are drawn.
        max_new_tokens: the budget of a response.

    Raises:
        ValueError: a budget below 1, or an end token that the model does not have.
    """

    model: Any
    tokenizer: Tokenizer
    reward: Reward
    sampling: Sampling = Sampling()
    max_new_tokens: int

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1")
        check_model(self.model, self.sampling)

    def __call__(self, params: Variables, prompts: Rows, mask: Rows, *, key: jax.Array) -> Answers:
        """One response to each row.

        Args:
            params: the complete variables.
            prompts: ids.
            mask: nonzero where a slot holds a real id.
            key: as `generate` takes it: one, or one for each row.

        Raises:
            NotImplementedError: several processes.
        """
        refuse_pool()
        inputs = ModelInputs(prompts, {"attention_mask": mask})
        drawn = generate(
            self.model, thaw(params), inputs, self.max_new_tokens, key=key, sampling=self.sampling
        ).host()
        texts = [
            self.tokenizer.decode(row[real != 0].tolist()) for row, real in zip(prompts, mask, strict=True)
        ]
        responses = [self.tokenizer.decode(ids) for ids in drawn.responses()]
        return Answers(drawn, texts, responses, scored(self.reward, texts, responses))

    @property
    def greedy(self) -> Responder:
        """This responder taking the best token each time."""
        ends, filling = self.sampling.eos_id, self.sampling.pad_id
        return replace(self, sampling=Sampling(temperature=0.0, eos_id=ends, pad_id=filling))


def refuse_pool() -> None:
    """Refuse to draw responses in a pool of processes.

    Raises:
        NotImplementedError: there are several.
    """
    if jax.process_count() > 1:
        raise NotImplementedError(
            f"drawing responses in a pool of {jax.process_count()} processes is not supported yet; "
            "train in one process"
        )


def prompts_of(batch: Batch) -> tuple[Rows, Rows]:
    """The prompts' ids and the mask of the real ones, on the host.

    Raises:
        ValueError: the batch has no prompts.
    """
    if PROMPT_KEY not in batch:
        raise ValueError(
            f"the batch holds {', '.join(batch)} and no {PROMPT_KEY!r}; responses continue prompts: "
            "use a dataset of prompts"
        )
    prompts = np.asarray(batch[PROMPT_KEY])
    mask = batch.get(PROMPT_MASK_KEY)
    return prompts, np.ones(prompts.shape, np.int32) if mask is None else np.asarray(mask)
