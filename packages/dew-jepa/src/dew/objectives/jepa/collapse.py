"""Meters of collapse: whether features still differ between images.

All three read the same additive statistics of the scored rows, the count, the sum of the features z and the
sum of z z^T, so that batches of any size add up to the whole pass.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dew.objectives.jepa.representation import SCORE, Representation, row_uses

COLLAPSED = 0.01
"""Mean deviation of a feature over its root mean square, below which features are the same for all images."""


class CollapseWarning(UserWarning):
    """The encoder gives nearly the same features for every image."""


@dataclass(frozen=True)
class Moments:
    """Sums over rows, in float64.

    Attributes:
        count: rows.
        total: [D] sum of the features.
        products: [D, D] sum of their outer products.
    """

    count: int
    total: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> Moments:
        """Of features [R, D]."""
        wide = np.asarray(features, np.float64)
        return cls(len(wide), wide.sum(0), wide.T @ wide)

    def plus(self, other: Moments) -> Moments:
        """Of both sets of rows."""
        return Moments(self.count + other.count, self.total + other.total, self.products + other.products)

    def covariance(self, *, unbiased: bool = False) -> np.ndarray:
        """[D, D], divided by the count, or by one less.

        Raises:
            ValueError: too few rows.
        """
        divisor = self.count - unbiased
        if divisor < 1:
            raise ValueError(f"a covariance needs more than the {self.count} scored rows of this pass")
        mean = self.total / self.count
        return (self.products - self.count * np.outer(mean, mean)) / divisor


class CollapseMeter(ABC):
    """A metric over the moments of a pass."""

    reads = Representation
    name: str
    higher_is_better: bool

    def __call__(self, artifact: Representation) -> Moments:
        """The moments of the scored rows of one batch."""
        return Moments.of(np.asarray(artifact.features)[row_uses(artifact) == SCORE])

    def merge(self, accumulated: Moments, contribution: Moments) -> Moments:
        return accumulated.plus(contribution)

    @abstractmethod
    def finalize(self, accumulated: Moments) -> float: ...


class FeatureDeviation(CollapseMeter):
    """The standard deviation of a feature over the images, averaged over the features; 0 is collapse.

    Warns:
        CollapseWarning: it is under a hundredth of the features' root mean square.
    """

    name = "feature_std"
    higher_is_better = True

    def finalize(self, accumulated: Moments) -> float:
        variances = np.clip(np.diag(accumulated.covariance()), 0, None)
        deviation = float(np.mean(np.sqrt(variances)))
        size = float(np.sqrt(np.mean(np.diag(accumulated.products)) / accumulated.count))
        if deviation <= COLLAPSED * size:
            warnings.warn(
                f"features vary by {deviation:.2g} between images and have size {size:.2g}: the encoder has "
                "collapsed; raise the momentum, or lower the learning rate",
                CollapseWarning,
                stacklevel=2,
            )
        return deviation


class FeatureCovariance(CollapseMeter):
    """Squared covariances of different features, summed and divided by D (arXiv 2105.04906, equation 4)."""

    name = "feature_covariance"
    higher_is_better = False

    def finalize(self, accumulated: Moments) -> float:
        covariance = accumulated.covariance(unbiased=True)
        off_diagonal = covariance - np.diag(np.diag(covariance))
        return float(np.square(off_diagonal).sum() / len(covariance))


class RankMe(CollapseMeter):
    """The exponential of the entropy of the features' singular values (arXiv 2210.02885, equation 1)."""

    name = "rankme"
    higher_is_better = True

    def finalize(self, accumulated: Moments) -> float:
        energies = np.clip(np.linalg.eigvalsh(accumulated.products), 0, None)
        return effective_rank(np.sqrt(energies))


def effective_rank(singular_values: np.ndarray) -> float:
    """`exp(-sum p log p)` with p the values divided by their sum; 1 where all are 0."""
    total = singular_values.sum()
    if total == 0:
        return 1.0
    shares = singular_values[singular_values > 0] / total
    return float(np.exp(-np.sum(shares * np.log(shares))))
