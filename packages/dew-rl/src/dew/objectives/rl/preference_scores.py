"""What a policy makes of held-out pairs, and the metrics over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dew.objectives.base import mean_of_totals, merge_totals

if TYPE_CHECKING:
    import jax

    type Array = jax.Array | np.ndarray


@dataclass(frozen=True, kw_only=True)
class PairScores:
    """Scores of P pairs.

    Attributes:
        losses: [P].
        weights: [P], 0 where a response has no counted target.
        chosen_rewards: [P], beta times the log ratio of policy and reference.
        rejected_rewards: [P].
        chosen_log_probs: [P], of the whole response under the policy.
        rejected_log_probs: [P].
        divergence: [P], exact KL(policy || reference) summed over the counted slots of both rows, in nats.
        tokens: [P], those slots.
    """

    losses: Array
    weights: Array
    chosen_rewards: Array
    rejected_rewards: Array
    chosen_log_probs: Array
    rejected_log_probs: Array
    divergence: Array
    tokens: Array


class PairMetric:
    """A mean over the pairs of a pass.

    Args:
        name: of the metric.
        higher_is_better: its direction.
        terms: from one artifact to numerators and denominators, [P] each.
    """

    reads = PairScores

    def __init__(
        self, name: str, *, higher_is_better: bool, terms: Callable[[PairScores], tuple[Any, Any]]
    ) -> None:
        self.name = name
        self.higher_is_better = higher_is_better
        self._terms = terms

    def __call__(self, artifact: PairScores, /) -> tuple[float, float]:
        """Total and mass of one batch, in float64."""
        values, mass = (np.asarray(part, np.float64) for part in self._terms(artifact))
        counted = np.asarray(artifact.weights) > 0
        return float(np.sum(values[counted])), float(np.sum(mass[counted]))

    @staticmethod
    def merge(accumulated: tuple[float, float], contribution: tuple[float, float], /) -> tuple[float, float]:
        """Add totals and masses."""
        return merge_totals(accumulated, contribution)

    @staticmethod
    def finalize(accumulated: tuple[float, float], /) -> float:
        """The mean.

        Raises:
            ValueError: the pass counted no pair.
        """
        return mean_of_totals(accumulated)


def preference_accuracy() -> PairMetric:
    """How often the chosen response has the higher implicit reward; a tie is a miss."""
    return PairMetric(
        "preference_accuracy",
        higher_is_better=True,
        terms=lambda scores: (scores.chosen_rewards > scores.rejected_rewards, scores.weights),
    )


def likelihood_accuracy() -> PairMetric:
    """How often the chosen response is the likelier one under the policy alone; a tie is a miss."""
    return PairMetric(
        "likelihood_accuracy",
        higher_is_better=True,
        terms=lambda scores: (scores.chosen_log_probs > scores.rejected_log_probs, scores.weights),
    )


def preference_loss() -> PairMetric:
    """The mean loss of a pair."""
    return PairMetric(
        "preference_loss", higher_is_better=False, terms=lambda scores: (scores.losses, scores.weights)
    )


def preference_margin() -> PairMetric:
    """The mean difference of the implicit rewards, chosen less rejected."""
    return PairMetric(
        "preference_margin",
        higher_is_better=True,
        terms=lambda scores: (scores.chosen_rewards - scores.rejected_rewards, scores.weights),
    )


def reference_divergence() -> PairMetric:
    """Exact KL(policy || reference) for each token of the pairs' responses, in nats."""
    return PairMetric("kl", higher_is_better=False, terms=lambda scores: (scores.divergence, scores.tokens))


def preference_metrics() -> tuple[PairMetric, ...]:
    """What validation of preferences reports; the best checkpoint follows the first."""
    return (
        preference_accuracy(),
        likelihood_accuracy(),
        preference_loss(),
        preference_margin(),
        reference_divergence(),
    )
