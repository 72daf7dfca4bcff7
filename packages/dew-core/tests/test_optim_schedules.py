"""The laws of the schedules, from their formulas."""

import math

import jax
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.registry import schedules
from dew.training.optim import build_schedule
from dew.training.optim.config import Cosine, Linear, Power, ScheduleSpec


def rates(spec: ScheduleSpec | None, updates, *, peak=2.0, total=10):
    schedule = build_schedule(OptimConfig(learning_rate=peak, schedule=spec), total_updates=total)
    return np.array([float(jax.jit(schedule)(n)) for n in updates])


def test_without_a_schedule_the_rate_is_constant():
    np.testing.assert_allclose(rates(None, [0, 5, 100]), 2.0)


def test_cosine_rises_falls_along_half_a_cosine_and_stays_at_its_end():
    expected = [0.0, 1.0, *(2 * (0.1 + 0.9 * (1 + math.cos(math.pi * x / 8)) / 2) for x in range(9)), 0.2]
    np.testing.assert_allclose(rates(Cosine(2, 0.1), range(12)), expected, rtol=1e-5, atol=1e-7)


def test_linear_rises_and_falls_along_lines():
    expected = [0.0, 1.0, 2.0, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125, 1.0, 1.0]
    np.testing.assert_allclose(rates(Linear(2, 0.5), range(12)), expected, rtol=1e-6)


@pytest.mark.parametrize("warmup", [0, 3])
def test_cosine_equals_optax(warmup):
    reference = optax.warmup_cosine_decay_schedule(
        0.0 if warmup else 2.0, 2.0, warmup_steps=warmup, decay_steps=10, end_value=0.5
    )
    expected = [float(reference(n)) for n in range(12)]
    np.testing.assert_allclose(rates(Cosine(warmup, 0.25), range(12)), expected, rtol=1e-6)


@pytest.mark.parametrize("spec", [Cosine(8), Linear(8)])
def test_a_run_shorter_than_its_warmup_ends_within_the_rise(spec):
    np.testing.assert_allclose(rates(spec, range(4), total=4), [0.0, 0.25, 0.5, 0.75])


def test_power_is_capped_at_the_peak_and_follows_its_law():
    spec = Power(scale=4.0, exponent=-0.5, per_update=2.0)
    expected = [min(2.0, 4 / math.sqrt(2 * max(n, 1))) for n in range(9)]
    np.testing.assert_allclose(rates(spec, range(9), total=9), expected, rtol=1e-6)


def test_power_does_not_depend_on_the_length_without_a_tail():
    spec = Power(scale=4.0, warmup_updates=3)
    np.testing.assert_array_equal(rates(spec, range(8), total=8), rates(spec, range(8), total=800))
    np.testing.assert_allclose(rates(spec, range(3)), [0.0, 2 / 3, 4 / 3], rtol=1e-6)


def test_power_ends_in_a_line_from_the_value_at_the_tails_start():
    spec = Power(scale=4.0, exponent=-0.5, tail_updates=4, end_factor=0.2)
    start = 4 / math.sqrt(6)
    expected = [4 / math.sqrt(5), *(start * (1 - 0.8 * x / 4) for x in range(5)), start * 0.2]
    np.testing.assert_allclose(rates(spec, [5, 6, 7, 8, 9, 10, 11]), expected, rtol=1e-6)


def test_a_tail_that_overlaps_the_warmup_is_refused():
    with pytest.raises(
        ValueError, match=r"tail_updates=8 and schedule\.warmup_updates=3 overlap in a run of 10"
    ):
        rates(Power(scale=1.0, warmup_updates=3, tail_updates=8), [0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cosine(-1), r"schedule\.warmup_updates=-1"),
        (lambda: Linear(end_factor=1.5), r"schedule\.end_factor=1\.5 must be in \[0, 1\]"),
        (lambda: Power(scale=0.0), r"schedule\.scale=0\.0 must be above 0"),
        (lambda: Power(scale=1.0, exponent=0.5), r"schedule\.exponent=0\.5 must be below 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_three_schedules_are_registered():
    assert {name: schedules.config(name) for name in ("cosine", "linear", "power")} == {
        "cosine": Cosine,
        "linear": Linear,
        "power": Power,
    }
