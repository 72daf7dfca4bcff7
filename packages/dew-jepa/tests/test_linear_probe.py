"""The linear probe is scikit-learn's ridge classifier on standardised features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.preprocessing import StandardScaler

from dew.objectives.jepa import LinearProbe, Representation
from dew.objectives.jepa.representation import FIT, SCORE, SKIP
from dew.objectives.jepa.ridge import PENALTIES, fit_ridge
from dew.testing import MetricContract

IMAGES, LABELS = load_digits(return_X_y=True)
HELD_OUT = np.arange(len(IMAGES)) % 5 == 0
SCALER = StandardScaler().fit(IMAGES[~HELD_OUT])


@pytest.mark.parametrize("penalty", [0.01, 1.0, 300.0])
def test_weights_and_intercept_are_those_of_scikit_learn(penalty):
    ours = fit_ridge(IMAGES[~HELD_OUT], LABELS[~HELD_OUT], [penalty])
    theirs = RidgeClassifier(alpha=penalty).fit(SCALER.transform(IMAGES[~HELD_OUT]), LABELS[~HELD_OUT])
    np.testing.assert_allclose(ours.weights.T, theirs.coef_, atol=1e-9)
    np.testing.assert_allclose(ours.intercept, theirs.intercept_, atol=1e-9)
    np.testing.assert_allclose(
        ours.scores(IMAGES[HELD_OUT]), theirs.decision_function(SCALER.transform(IMAGES[HELD_OUT])), atol=1e-9
    )


@pytest.mark.parametrize("rows", [40, 200, 1437])
def test_the_penalty_is_the_one_scikit_learn_chooses_by_leaving_one_out(rows):
    train, labels = IMAGES[~HELD_OUT][:rows], LABELS[~HELD_OUT][:rows]
    ours = fit_ridge(train, labels)
    scaled = StandardScaler().fit(train)
    theirs = RidgeClassifierCV(alphas=PENALTIES).fit(scaled.transform(train), labels)
    assert ours.penalty == theirs.alpha_
    np.testing.assert_array_equal(
        ours.predict(IMAGES[HELD_OUT]), theirs.predict(scaled.transform(IMAGES[HELD_OUT]))
    )


def test_more_features_than_rows_are_fitted_too():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(20, 50)), np.arange(20) % 3
    ours = fit_ridge(features, labels, [1.0])
    scaled = StandardScaler().fit_transform(features)
    theirs = RidgeClassifier(alpha=1.0).fit(scaled, labels)
    np.testing.assert_allclose(ours.weights.T, theirs.coef_, atol=1e-9)


class TestProbe(MetricContract):
    def metric(self):
        return LinearProbe()

    def artifacts(self):
        order = np.random.default_rng(1).permutation(len(IMAGES))
        use = np.where(HELD_OUT, SCORE, FIT)
        return [
            Representation(features=IMAGES[part], labels=LABELS[part], use=use[part])
            for part in np.split(order, [300, 700, 1500])
        ]

    def expected(self):
        theirs = RidgeClassifierCV(alphas=PENALTIES).fit(
            SCALER.transform(IMAGES[~HELD_OUT]), LABELS[~HELD_OUT]
        )
        return float(theirs.score(SCALER.transform(IMAGES[HELD_OUT]), LABELS[HELD_OUT]))


def test_scored_rows_do_not_move_the_fit_and_rows_to_skip_count_nowhere():
    use = np.where(HELD_OUT, SCORE, FIT)
    spoiled, labels = IMAGES.copy(), LABELS.copy()
    use[1:400:5] = SKIP
    spoiled[use == SKIP], labels[use == SKIP] = 1e6, 3
    probe = LinearProbe(penalties=(1.0,))
    score = probe.finalize(probe(Representation(features=spoiled, labels=labels, use=use)))
    theirs = RidgeClassifier(alpha=1.0)
    scaler = StandardScaler().fit(IMAGES[use == FIT])
    theirs.fit(scaler.transform(IMAGES[use == FIT]), LABELS[use == FIT])
    assert score == theirs.score(scaler.transform(IMAGES[HELD_OUT]), LABELS[HELD_OUT])


def test_what_cannot_be_fitted_is_refused_by_name():
    with pytest.raises(ValueError, match="two classes"):
        fit_ridge(IMAGES[:5], np.zeros(5))
    with pytest.raises(ValueError, match=r"penalties=\(0,\)"):
        fit_ridge(IMAGES[:5], LABELS[:5], (0,))
    with pytest.raises(ValueError, match=r"penalties=\(\)"):
        LinearProbe(penalties=())
    with pytest.raises(ValueError, match="no row of the pass is fitted on"):
        LinearProbe().finalize(LinearProbe()(Representation(features=IMAGES, labels=LABELS)))
    with pytest.raises(ValueError, match="needs labels"):
        LinearProbe()(Representation(features=IMAGES))
