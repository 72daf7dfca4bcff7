"""What the judge of drawn images measures, on images whose answer is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).resolve().parent.parent / "tools" / "judge_images.py"


@pytest.fixture(scope="module")
def judge():
    spec = importlib.util.spec_from_file_location("judge_images", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def split(judge, seed, rows=200):
    """Two classes of 4x4 images around -0.5 and 0.5."""
    labels = np.arange(rows) % 2
    noise = np.random.default_rng(seed).normal(0, 0.2, (rows, 4, 4, 1))
    return judge.Real(noise + (labels - 0.5)[:, None, None, None], labels)


def test_nearest_distance_is_euclidean_to_the_nearest_row(judge):
    training = np.asarray([[0.0, 0.0], [3.0, 4.0]])
    found = judge.nearest_distances(np.asarray([[0.0, 1.0], [3.0, 4.0], [6.0, 8.0]]), training)
    np.testing.assert_allclose(found, [1, 0, 5], atol=1e-7)


def test_variance_is_taken_within_a_class(judge):
    images = np.asarray([[0.0, 0.0], [2.0, 4.0], [100.0, 0.0], [100.0, 0.0]])
    np.testing.assert_allclose(judge.class_variance(images, np.asarray([0, 0, 1, 1])), [2.5, 0])


def measured(judge, images, labels):
    train, held_out = split(judge, 0), split(judge, 1)
    return judge.measures(images, labels, train=train, held_out=held_out, judge=judge.fitted_judge(held_out))


def test_fresh_images_of_the_same_kind_pass(judge):
    fresh = split(judge, 2)
    found = measured(judge, fresh.images, fresh.labels)
    assert found["agreement"] > 0.98
    assert found["variance_ratio_mean"] == pytest.approx(1, abs=0.1)
    assert found["closer_than_held_out_quantile"]["0.05"] < 0.12


def test_copies_of_training_images_are_found_out(judge):
    train = split(judge, 0)
    assert measured(judge, train.images, train.labels)["closer_than_held_out_quantile"]["0.05"] == 1.0


def test_wrong_classes_and_shrunk_images_are_found_out(judge):
    fresh = split(judge, 2)
    assert measured(judge, fresh.images, 1 - fresh.labels)["agreement"] < 0.02
    means = np.where(fresh.labels[:, None, None, None] == 1, 0.5, -0.5)
    shrunk = means + 0.5 * (fresh.images - means)
    assert measured(judge, shrunk, fresh.labels)["variance_ratio_mean"] == pytest.approx(0.25, abs=0.05)
