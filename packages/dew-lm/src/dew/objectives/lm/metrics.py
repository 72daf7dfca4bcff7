"""Perplexity of a validation pass."""

from __future__ import annotations

import math

import numpy as np

from dew.artifacts import TokenScores
from dew.objectives.base import mean_of_totals, merge_totals


class Perplexity:
    """`exp(sum of weighted losses / sum of weights)` over a whole pass.

    A batch weighs by its counted targets, so packed and padded passes are scored per token, and a batch
    without a counted target adds nothing.
    """

    name = "perplexity"
    higher_is_better = False
    reads = TokenScores

    def __call__(self, artifact: TokenScores, /) -> tuple[float, float]:
        """The summed loss and the count of one batch, in float64."""
        losses = np.asarray(artifact.losses, np.float64)
        weights = np.asarray(artifact.weights, np.float64)
        # A loss that is not counted may be anything, infinity included.
        counted = np.where(weights > 0, losses, 0.0)
        return float(np.sum(counted * weights)), float(np.sum(weights))

    @staticmethod
    def merge(accumulated: tuple[float, float], contribution: tuple[float, float], /) -> tuple[float, float]:
        """Add totals and counts."""
        return merge_totals(accumulated, contribution)

    @staticmethod
    def finalize(accumulated: tuple[float, float], /) -> float:
        """The perplexity; infinite where its logarithm is beyond a float's range.

        Raises:
            NothingCounted: the pass counted no target.
        """
        nats = mean_of_totals(accumulated)
        try:
            return math.exp(nats)
        except OverflowError:
            return math.inf


def perplexity() -> Perplexity:
    """The metric, as the registry builds it."""
    return Perplexity()
