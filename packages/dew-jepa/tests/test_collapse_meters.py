"""Collapse meters: known values, additive statistics, and a planted collapse."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dew.objectives.jepa import (
    CollapseWarning,
    FeatureCovariance,
    FeatureDeviation,
    RankMe,
    Representation,
)
from dew.objectives.jepa.representation import FIT, SCORE, SKIP
from dew.testing import MetricContract

FEATURES = np.random.default_rng(0).normal(1.0, 2.0, (30, 5)) @ np.diag([1, 2, 3, 4, 0.5])


def value(metric, features):
    return metric.finalize(metric(Representation(features=features)))


def with_singular_values(values):
    """A matrix of 40 rows with these singular values."""
    random = np.random.default_rng(1)
    left = np.linalg.qr(random.normal(size=(40, len(values))))[0]
    right = np.linalg.qr(random.normal(size=(len(values), len(values))))[0]
    return left @ np.diag(values) @ right


class Pieces(MetricContract):
    """FEATURES in three batches of different sizes."""

    def artifacts(self):
        return [Representation(features=part) for part in np.split(FEATURES, [7, 19])]


class TestDeviation(Pieces):
    def metric(self):
        return FeatureDeviation()

    def expected(self):
        return float(FEATURES.std(0).mean())


class TestCovariance(Pieces):
    def metric(self):
        return FeatureCovariance()

    def expected(self):
        covariance = np.cov(FEATURES, rowvar=False)
        return float((np.square(covariance).sum() - np.square(np.diag(covariance)).sum()) / 5)


class TestRankMe(Pieces):
    def metric(self):
        return RankMe()

    def expected(self):
        shares = np.linalg.svd(FEATURES, compute_uv=False)
        shares = shares / shares.sum()
        return float(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize(
    ("singular_values", "rank"), [((1, 1, 1, 1), 4.0), ((4, 2, 1, 1), 3.363586), ((3, 0, 0, 0), 1.0)]
)
def test_rankme_of_known_singular_values(singular_values, rank):
    assert value(RankMe(), with_singular_values(singular_values)) == pytest.approx(rank, abs=1e-5)


def test_features_that_do_not_differ_have_no_deviation_and_raise_the_warning():
    with pytest.warns(CollapseWarning, match="the encoder has collapsed"):
        assert value(FeatureDeviation(), np.full((8, 3), 1.5)) == 0.0
    with pytest.warns(CollapseWarning):
        assert value(FeatureDeviation(), np.zeros((8, 3))) == 0.0


def test_the_warning_depends_on_deviation_over_size_alone():
    random = np.random.default_rng(2)
    healthy = 0.05 + 0.001 * random.normal(size=(200, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value(FeatureDeviation(), healthy)
    with pytest.warns(CollapseWarning):
        value(FeatureDeviation(), 1 + 0.001 * random.normal(size=(200, 3)))


def test_only_scored_rows_are_measured():
    use = np.resize([SCORE, FIT, SKIP], len(FEATURES))
    artifact = Representation(features=FEATURES, use=use)
    metric = FeatureDeviation()
    assert metric.finalize(metric(artifact)) == pytest.approx(FEATURES[use == SCORE].std(0).mean())
