"""`SampledRollout`: the policy answers each prompt several times, and each answer is set against the others.

Dimensions: B prompts, n responses of each, R = B * n rows, the responses of a prompt together, S targets a
row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dew.objectives.base import Batch, Step, Variables
from dew.objectives.lm import TEXT_KEY
from dew.objectives.rl.batch import (
    ADVANTAGES_KEY,
    BEHAVIOR_KEY,
    MASK_KEY,
    NO_SPREAD_KEY,
    OLD_KEY,
    REWARDS_KEY,
    SINGLETON_KEY,
)
from dew.objectives.rl.packing import at_targets, pack_rows
from dew.objectives.rl.responder import Answers, Responder, Rows, prompts_of
from dew.rl import Advantages, check_log_probs, group_advantages

type Estimator = Callable[[Float[Array, "B n"]], Advantages]
"""From the rewards of each group, NaN where one abstains, to the advantages of its responses."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledRollout:
    """A `dew.training.trainer.Rollout`: from prompts to the packed rows that `GRPOObjective` trains on.

    Every response is drawn from the live variables of the call. Row i draws with `fold_in(step.key, i)`, and
    its responses after the first with their number folded into that, so a response depends on its prompt, its
    place and the weights alone, and a resumed run draws what the uninterrupted one draws.

    Attributes:
        responder: draws and judges.
        n: responses of a prompt.
        advantages: from the rewards to the advantages, and to which rows count.

    Raises:
        ValueError: fewer than one response.
    """

    responder: Responder
    n: int
    advantages: Estimator = group_advantages

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n={self.n} must be at least 1")

    def __call__(self, params: Variables, batch: Batch, step: Step) -> Batch:
        """Draw, judge and pack.

        Returns:
            The fields of `dew.objectives.rl.batch` over R rows, as host arrays.

        Raises:
            NotImplementedError: several processes.
            ValueError: a batch without prompts, rewards that are no numbers, or a token that was drawn with
                probability 0.
        """
        rows = prompts_of(batch)
        prompts, mask = (np.repeat(each, self.n, axis=0) for each in rows)
        keys = response_keys(step.key, len(rows[0]), self.n)
        return self._packed(prompts, mask, self.responder(params, prompts, mask, key=keys))

    def _packed(self, prompts: Rows, mask: Rows, answers: Answers) -> Batch:
        drawn, lengths = answers.drawn, np.asarray(answers.drawn.lengths)
        packed = pack_rows(prompts, mask, np.asarray(drawn.tokens)[:, drawn.prompt_width :], lengths)
        recorded = {
            BEHAVIOR_KEY: at_targets(np.asarray(drawn.behavior_log_probs), packed, lengths),
            OLD_KEY: at_targets(np.asarray(drawn.raw_log_probs), packed, lengths),
        }
        for name, log_probs in recorded.items():
            check_log_probs(name, log_probs, packed.mask)
        judged = self.advantages(jnp.asarray(answers.rewards).reshape(-1, self.n))
        return {
            TEXT_KEY: packed.text,
            MASK_KEY: packed.mask * np.asarray(judged.counted).reshape(-1, 1),
            **recorded,
            ADVANTAGES_KEY: np.asarray(judged.values, np.float32).reshape(-1),
            REWARDS_KEY: answers.rewards,
            NO_SPREAD_KEY: np.repeat(np.asarray(judged.no_spread, np.float32), self.n),
            SINGLETON_KEY: np.repeat(np.asarray(judged.singleton, np.float32), self.n),
        }


@partial(jax.jit, static_argnums=(1, 2))
def response_keys(key: jax.Array, prompts: int, n: int) -> jax.Array:
    """The keys [B * n] with which `generate(..., key=key, n=n)` draws; one call then draws all responses."""
    fold = jax.random.fold_in
    rows = jax.vmap(fold, (None, 0))(key, jnp.arange(prompts, dtype=jnp.uint32))
    further = jax.vmap(jax.vmap(fold, (None, 0)), (0, None))(rows, jnp.arange(1, n, dtype=jnp.uint32))
    return jnp.concatenate([rows[:, None], further], axis=1).reshape(-1)
