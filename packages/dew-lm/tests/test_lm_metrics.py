"""Perplexity over a pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dew.artifacts import TokenScores
from dew.objectives.lm import Perplexity, perplexity
from dew.registry import metrics


def scores(losses, weights):
    return TokenScores(losses=np.array([losses], np.float32), weights=np.array([weights], np.float32))


def finalized(*batches):
    metric = Perplexity()
    first, *others = [metric(batch) for batch in batches]
    for other in others:
        first = metric.merge(first, other)
    return metric.finalize(first)


def test_batches_weigh_by_their_counted_targets():
    small, large = scores([2.0], [1.0]), scores([10.0] * 9, [1.0] * 9)
    assert finalized(small, large) == pytest.approx(math.exp(9.2))


def test_targets_that_do_not_count_may_have_any_loss():
    assert finalized(scores([1.0, np.inf, np.nan], [1.0, 0.0, 0.0])) == pytest.approx(math.e)


def test_a_batch_without_a_counted_target_adds_nothing():
    assert finalized(scores([3.0], [1.0]), scores([7.0], [0.0])) == pytest.approx(math.exp(3))


def test_a_pass_without_a_counted_target_has_no_perplexity():
    with pytest.raises(ValueError, match="counted 0"):
        finalized(scores([3.0], [0.0]))


def test_a_perplexity_beyond_a_float_is_infinite():
    assert finalized(scores([1e4], [1.0])) == math.inf


def test_the_metric_is_registered_and_lower_is_better():
    assert metrics["perplexity"]().name == perplexity().name == "perplexity"
    assert not perplexity().higher_is_better and perplexity().reads is TokenScores
