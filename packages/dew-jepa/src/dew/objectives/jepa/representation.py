"""What evaluation hands to the meters and probes: the features of every image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dew.artifacts import Array

PROBE_KEY = "probe"
"""A batch's field that says what each row is for: one of the three numbers below."""

SCORE, FIT, SKIP = 0, 1, 2
"""A row that is scored, one that a probe is fitted on, and one that fills a batch and counts nowhere."""


@dataclass(frozen=True, kw_only=True)
class Representation:
    """Features of images.

    Attributes:
        features: [B, D] float32, one vector an image.
        labels: [B] integers, or None where the data has none.
        use: [B], what each row is for; None scores them all.
        source: which network they come from, and how an image's tokens became one vector.
    """

    features: Array
    labels: Array | None = None
    use: Array | None = None
    source: str = ""


@dataclass(frozen=True)
class Rows:
    """Labelled features on the host, gathered over a pass.

    Attributes:
        features: [R, D] float64.
        labels: [R] integers.
        use: [R], FIT or SCORE.
    """

    features: np.ndarray
    labels: np.ndarray
    use: np.ndarray

    @classmethod
    def of(cls, artifact: Representation) -> Rows:
        """The rows of one batch that count.

        Raises:
            ValueError: the batch has no labels.
        """
        if artifact.labels is None:
            raise ValueError(
                "a probe needs labels, and the batch has none; use labelled data, or leave the probes out"
            )
        use = row_uses(artifact)
        kept = use != SKIP
        features = np.asarray(artifact.features, np.float64)
        return cls(features[kept], np.asarray(artifact.labels)[kept], use[kept])

    def joined(self, others: Rows) -> Rows:
        """These rows, then `others`."""
        pairs = ((self.features, others.features), (self.labels, others.labels), (self.use, others.use))
        return Rows(*(np.concatenate(pair) for pair in pairs))

    def parts(self) -> tuple[Any, Any, Any, Any]:
        """Features and labels to fit on, then features and labels to score.

        Raises:
            ValueError: no row of either kind.
        """
        fits = self.use == FIT
        if fits.all() or not fits.any():
            lacking = "scored" if fits.all() else "fitted on"
            raise ValueError(
                f"no row of the pass is {lacking}; mark the rows by the field {PROBE_KEY!r}, as "
                "dew.objectives.jepa.with_probe_rows does"
            )
        return self.features[fits], self.labels[fits], self.features[~fits], self.labels[~fits]


def row_uses(artifact: Representation) -> np.ndarray:
    """[B], what each row is for."""
    if artifact.use is None:
        return np.full(len(artifact.features), SCORE)
    return np.asarray(artifact.use)
