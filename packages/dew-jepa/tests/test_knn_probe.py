"""The nearest-neighbour probe: its vote, known scores, and that no row elects itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dew.objectives.jepa import KnnProbe, Representation
from dew.objectives.jepa.knn import elected, knn_predict
from dew.objectives.jepa.representation import FIT, SCORE
from dew.testing import MetricContract

IMAGES, LABELS = load_digits(return_X_y=True)
HELD_OUT = np.arange(len(IMAGES)) % 5 == 0


def accuracy(**options):
    found = knn_predict(IMAGES[~HELD_OUT], LABELS[~HELD_OUT], IMAGES[HELD_OUT], **options)
    return float(np.mean(found == LABELS[HELD_OUT]))


@pytest.mark.parametrize(("temperature", "winner"), [(0.07, "A"), (0.2, "B")])
def test_temperature_decides_between_the_nearest_and_the_many(temperature, winner):
    similarity = np.asarray([[0.9, 0.85, 0.85]])
    assert elected(similarity, np.asarray(list("ABB")), k=3, temperature=temperature) == [winner]


@pytest.mark.parametrize(("k", "expected"), [(20, 0.9806), (200, 0.9361), (1, 0.9778)])
def test_scores_on_digits_are_the_known_ones(k, expected):
    assert accuracy(k=k) == pytest.approx(expected, abs=5e-5)


def test_a_row_does_not_vote_on_itself():
    own = knn_predict(IMAGES, LABELS, k=1)
    similarity = IMAGES @ IMAGES.T / np.outer(*2 * [np.linalg.norm(IMAGES, axis=1)])
    np.fill_diagonal(similarity, -1)
    np.testing.assert_array_equal(own, LABELS[similarity.argmax(1)])
    assert np.mean(own == LABELS) < 1


def test_the_training_rows_as_queries_are_refused():
    with pytest.raises(ValueError, match="elect itself"):
        knn_predict(IMAGES, LABELS, IMAGES.copy(), k=1)


def test_collapsed_features_are_scored_and_not_refused():
    constant = np.ones((6, 3))
    assert knn_predict(constant, np.arange(6) % 2, constant, k=3).shape == (6,)


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2000}, {"temperature": 0.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        accuracy(**options)


@pytest.mark.parametrize("options", [{"k": 0}, {"temperature": 0.0}])
def test_a_probe_refuses_them_before_any_row_is_gathered(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        KnnProbe(**options)


class TestProbe(MetricContract):
    tolerance = 1e-4

    def metric(self):
        return KnnProbe()

    def artifacts(self):
        use = np.where(HELD_OUT, SCORE, FIT)
        return [
            Representation(features=IMAGES[part], labels=LABELS[part], use=use[part])
            for part in np.split(np.arange(len(IMAGES)), [500, 900, 1600])
        ]

    def expected(self):
        return 0.98055
