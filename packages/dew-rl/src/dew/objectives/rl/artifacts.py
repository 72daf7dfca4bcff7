"""What a policy wrote and what it was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dew.objectives.base import mean_of_totals, merge_totals


@dataclass(frozen=True, kw_only=True)
class RewardedTexts:
    """Responses with their rewards.

    Attributes:
        prompts: one text a row.
        texts: the response of each row.
        rewards: [R], NaN where the reward abstained.
    """

    prompts: Sequence[str]
    texts: Sequence[str]
    rewards: np.ndarray


class MeanReward:
    """The mean reward of a validation pass; rows whose reward abstained are left out."""

    name = "reward"
    higher_is_better = True
    reads = RewardedTexts

    def __call__(self, artifact: RewardedTexts, /) -> tuple[float, float]:
        """The summed reward and the count of one batch, in float64."""
        rewards = np.asarray(artifact.rewards, np.float64)
        counted = np.isfinite(rewards)
        return float(rewards[counted].sum()), float(counted.sum())

    @staticmethod
    def merge(accumulated: tuple[float, float], contribution: tuple[float, float], /) -> tuple[float, float]:
        """Add totals and counts."""
        return merge_totals(accumulated, contribution)

    @staticmethod
    def finalize(accumulated: tuple[float, float], /) -> float:
        """The mean.

        Raises:
            ValueError: every reward of the pass abstained.
        """
        return mean_of_totals(accumulated)
