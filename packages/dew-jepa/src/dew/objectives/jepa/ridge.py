"""A linear probe with a closed form: ridge regression on class indicators.

Dimensions: R rows, D features, C classes. Features are standardised with the fitting rows' means and
deviations. With `X = U S V^T` those features and Y the indicators (1 for the class, -1 else) less their
means, the weights at penalty a are `V S / (S^2 + a) U^T Y`. One decomposition serves every penalty, and every
leave-one-out error is `residual / (1 - H_ii)` with `H = 1 / R + U S^2 / (S^2 + a) U^T`: the penalty with the
smallest sum of their squares is taken, so nothing but the fitting rows chooses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dew.objectives.jepa.representation import Representation, Rows

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)


@dataclass(frozen=True)
class RidgeClassifier:
    """A fitted probe.

    Attributes:
        classes: [C] the labels, in order.
        mean: [D] of the fitting rows.
        deviation: [D] of the fitting rows, 1 where a feature is constant.
        weights: [D, C] on standardised features.
        intercept: [C].
        penalty: the one that was taken.
    """

    classes: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    weights: np.ndarray
    intercept: np.ndarray
    penalty: float

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[R, C], the largest of which is the class."""
        return (features - self.mean) / self.deviation @ self.weights + self.intercept

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[R] labels."""
        return self.classes[np.argmax(self.scores(features), axis=1)]


def fit_ridge(
    features: np.ndarray, labels: np.ndarray, penalties: Sequence[float] = PENALTIES
) -> RidgeClassifier:
    """Fit the probe on rows [R, D] with labels [R].

    Raises:
        ValueError: a penalty that is not positive, fewer than two classes, or no penalty.
    """
    check_penalties(penalties)
    classes, index = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"a probe needs two classes, and the rows it is fitted on have {len(classes)}")
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.where(deviation > 1e-12 * np.maximum(np.abs(mean), 1), deviation, 1.0)
    indicators = 2.0 * (index[:, None] == np.arange(len(classes))) - 1
    intercept = indicators.mean(0)
    left, singular, right = np.linalg.svd((features - mean) / deviation, full_matrices=False)
    projected = left.T @ (indicators - intercept)
    shrinkage = [singular**2 / (singular**2 + penalty) for penalty in penalties]
    errors = [_left_out(left, kept, projected, indicators - intercept) for kept in shrinkage]
    penalty = penalties[int(np.argmin(errors))]
    weights = right.T @ ((singular / (singular**2 + penalty))[:, None] * projected)
    return RidgeClassifier(classes, mean, deviation, weights, intercept, penalty)


def check_penalties(penalties: Sequence[float]) -> None:
    """Refuse penalties that nothing can be fitted with.

    Raises:
        ValueError: none, or one that is not positive.
    """
    if not penalties or min(penalties) <= 0:
        raise ValueError(f"penalties={tuple(penalties)} must be positive numbers, one at least")


def _left_out(left: np.ndarray, kept: np.ndarray, projected: np.ndarray, centred: np.ndarray) -> float:
    """The sum of squared leave-one-out errors at one shrinkage [min(R, D)]."""
    leverage = 1 / len(left) + np.square(left) @ kept
    residual = centred - left @ (kept[:, None] * projected)
    return float(np.square(residual / (1 - leverage)[:, None]).sum())


@dataclass(frozen=True)
class LinearProbe:
    """Accuracy of a ridge classifier that is fitted on the pass's fitting rows, over its scored rows.

    Attributes:
        penalties: of which leave-one-out errors on the fitting rows choose one.
        name: of the metric.

    Raises:
        ValueError: no penalty, or one that is not positive.
    """

    penalties: tuple[float, ...] = PENALTIES
    name: str = "linear_probe"
    higher_is_better: bool = True
    reads: type[Representation] = Representation

    def __post_init__(self) -> None:
        check_penalties(self.penalties)

    def __call__(self, artifact: Representation) -> Rows:
        """The labelled rows of one batch."""
        return Rows.of(artifact)

    def merge(self, accumulated: Rows, contribution: Rows) -> Rows:
        return accumulated.joined(contribution)

    def finalize(self, accumulated: Rows) -> float:
        """The share of scored rows whose class is predicted."""
        features, labels, scored, answers = accumulated.parts()
        return float(np.mean(fit_ridge(features, labels, self.penalties).predict(scored) == answers))
