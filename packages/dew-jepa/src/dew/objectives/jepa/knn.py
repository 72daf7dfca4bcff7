"""A probe without training: the classes of the nearest images vote (arXiv 1805.01978, section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dew.objectives.jepa.representation import Representation, Rows


def knn_predict(
    features: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray | None = None,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> np.ndarray:
    """The elected label of every query.

    The k rows of the largest cosine similarity s vote for their labels with weight `exp(s / temperature)`.

    Args:
        features: [R, D] rows with known labels.
        labels: [R].
        queries: [Q, D]; None asks for the rows themselves, each of which then does not vote on itself.
        k: voters.
        temperature: the lower, the more the nearest counts.

    Returns:
        [Q] labels. The smaller label wins a tie.

    Raises:
        ValueError: more voters than rows, a temperature that is not positive, or queries that are the rows.
    """
    itself = queries is None
    asked = features if queries is None else queries
    if (
        not itself
        and asked.shape == features.shape
        and np.array_equal(asked, features)
        and np.ptp(asked, 0).any()
    ):
        raise ValueError(
            "queries are the very rows that vote, so each would elect itself; leave queries out to exclude it"
        )
    if not 1 <= k <= len(features) - itself:
        raise ValueError(f"k={k} voters must lie in 1..{len(features) - itself}, the rows that can vote")
    check_temperature(temperature)
    similarity = _unit(asked) @ _unit(features).T
    if itself:
        np.fill_diagonal(similarity, -np.inf)
    return elected(similarity, labels, k=k, temperature=temperature)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not positive.

    Raises:
        ValueError: it is not.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")


def elected(similarity: np.ndarray, labels: np.ndarray, *, k: int, temperature: float) -> np.ndarray:
    """The label that the k most similar rows elect, for similarities [Q, R]."""
    classes, index = np.unique(labels, return_inverse=True)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    close = np.take_along_axis(similarity, nearest, axis=1)
    weights = np.exp((close - close[:, :1]) / temperature)
    votes = np.stack([(weights * (index[nearest] == one)).sum(1) for one in range(len(classes))], axis=1)
    return classes[np.argmax(votes, axis=1)]


def _unit(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


@dataclass(frozen=True)
class KnnProbe:
    """Accuracy of the vote of the pass's fitting rows on its scored rows.

    Attributes:
        k: voters; fewer where there are fewer rows.
        temperature: of the vote.
        name: of the metric.

    Raises:
        ValueError: no voter, or a temperature that is not positive.
    """

    k: int = 20
    temperature: float = 0.07
    name: str = "knn_probe"
    higher_is_better: bool = True
    reads: type[Representation] = Representation

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1 voter")
        check_temperature(self.temperature)

    def __call__(self, artifact: Representation) -> Rows:
        """The labelled rows of one batch."""
        return Rows.of(artifact)

    def merge(self, accumulated: Rows, contribution: Rows) -> Rows:
        return accumulated.joined(contribution)

    def finalize(self, accumulated: Rows) -> float:
        """The share of scored rows whose label is elected."""
        features, labels, scored, answers = accumulated.parts()
        voters = min(self.k, len(features))
        chosen = knn_predict(features, labels, scored, k=voters, temperature=self.temperature)
        return float(np.mean(chosen == answers))
