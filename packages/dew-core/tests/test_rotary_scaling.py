"""Scaled rotary frequencies against their formulas, turning by neighbours and in part, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.frequencies import attention_factor, frequencies
from dew.nn.rotary import rotary_table, rotate
from dew.nn.rotary_scaling import RotaryScaling

WIDTH, THETA = 32, 10000.0
PLAIN = THETA ** -(np.arange(0, WIDTH, 2) / WIDTH)
LLAMA3 = RotaryScaling(
    kind="llama3", factor=8.0, original_length=64, low_freq_factor=1.0, high_freq_factor=4.0
)
YARN = RotaryScaling(kind="yarn", factor=4.0, original_length=64, beta_fast=4.0)


def scaled(scaling, lengths=None):
    return np.asarray(frequencies(WIDTH, THETA, scaling, lengths)[0])


def test_linear_divides_every_frequency():
    np.testing.assert_allclose(scaled(RotaryScaling(kind="linear", factor=4.0))[0], PLAIN / 4, rtol=1e-6)


def test_llama3_keeps_short_wavelengths_stretches_long_ones_and_blends_between():
    found, turns = scaled(LLAMA3)[0], 64 * PLAIN / (2 * math.pi)
    np.testing.assert_allclose(found[turns >= 4], PLAIN[turns >= 4], rtol=1e-6)
    np.testing.assert_allclose(found[turns <= 1], PLAIN[turns <= 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    smooth = (turns[between] - 1) / 3
    assert between.sum() > 1
    np.testing.assert_allclose(found[between], PLAIN[between] * (smooth + (1 - smooth) / 8), rtol=1e-6)


def test_llama3_with_equal_factors_has_no_ramp_between_kept_and_stretched():
    """Llama 4 Scout's files say 1 and 1."""
    found, turns = scaled(replace(LLAMA3, high_freq_factor=1.0))[0], 64 * PLAIN / (2 * math.pi)
    np.testing.assert_allclose(found, np.where(turns > 1, PLAIN, PLAIN / 8), rtol=1e-6)


def test_yarn_ramps_between_the_pairs_that_turn_beta_times():
    """The pair that turns b times over L has the index D ln(L / 2 pi b) / 2 ln theta: 1.62 and 4.03 here."""
    ramp = np.clip((np.arange(WIDTH // 2) - 1) / (5 - 1), 0, 1)
    np.testing.assert_allclose(scaled(YARN)[0], PLAIN * (1 - ramp) + PLAIN / 4 * ramp, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707}, 1.3688879 / 1.2608038),
        ({"factor": 40.0, "attention_factor": 1.25}, 1.25),
    ],
)
def test_attention_factor_of_yarn_is_its_mscales_or_what_the_file_says(fields, expected):
    scaling = RotaryScaling(**{"kind": "yarn", "factor": 4.0, "original_length": 64, **fields})
    assert attention_factor(scaling) == pytest.approx(expected, rel=1e-6)
    cosines, _ = rotary_table(jnp.zeros((1, 1), jnp.int32), WIDTH, THETA, scaling=scaling)
    np.testing.assert_allclose(cosines, expected, rtol=1e-6)


LONG = RotaryScaling(
    kind="longrope",
    factor=8.0,
    original_length=32,
    short_factors=tuple(np.linspace(1, 2, WIDTH // 2)),
    long_factors=tuple(np.linspace(3, 9, WIDTH // 2)),
)


def test_longrope_takes_the_factors_of_each_rows_own_length():
    found = scaled(LONG, jnp.array([32, 33]))
    np.testing.assert_allclose(found[0], PLAIN / np.linspace(1, 2, WIDTH // 2), rtol=1e-6)
    np.testing.assert_allclose(found[1], PLAIN / np.linspace(3, 9, WIDTH // 2), rtol=1e-6)
    assert attention_factor(LONG) == pytest.approx(math.sqrt(1 + math.log(8) / math.log(32)))


def test_dynamic_grows_the_base_with_rows_that_outgrow_the_trained_length():
    found = scaled(RotaryScaling(kind="dynamic", factor=4.0, original_length=32), jnp.array([16, 48]))
    base = THETA * (4 * 48 / 32 - 3) ** (WIDTH / (WIDTH - 2))
    np.testing.assert_allclose(found[0], PLAIN, rtol=1e-6)
    np.testing.assert_allclose(found[1], base ** -(np.arange(0, WIDTH, 2) / WIDTH), rtol=1e-5)


def test_a_row_turns_the_same_whatever_its_neighbours_hold():
    positions = jnp.stack([jnp.arange(40), jnp.minimum(jnp.arange(40), 20)])
    both = rotary_table(positions, WIDTH, THETA, scaling=LONG)[0]
    np.testing.assert_array_equal(both[1:], rotary_table(positions[1:], WIDTH, THETA, scaling=LONG)[0])
    assert np.abs(both[0, :21] - both[1, :21]).max() > 0.1


def test_neighbours_turn_as_pairs_and_what_lies_behind_them_stays():
    x = np.random.default_rng(0).standard_normal((1, 5, 2, 10))
    positions = np.array([[0, 3, 1, 100, 7]])
    turn = np.exp(1j * positions[0][:, None] * 50.0 ** -(np.arange(0, 6, 2) / 6))[None, :, None]
    pairs = (x[..., :6:2] + 1j * x[..., 1:6:2]) * turn
    expected = np.stack([pairs.real, pairs.imag], -1).reshape(1, 5, 2, 6)
    table = rotary_table(jnp.asarray(positions), 6, 50.0)
    got = rotate(jnp.asarray(x, jnp.float32), *table, pairs="neighbours")
    np.testing.assert_allclose(got, np.concatenate([expected, x[..., 6:]], -1), atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "ntk"}, "kind='ntk' must be one of linear, dynamic, llama3, yarn, longrope"),
        ({"kind": "yarn", "factor": 2.0}, "yarn needs original_length; it takes kind, factor"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 3.0}, "linear does not read beta_fast=3.0"),
    ],
)
def test_fields_that_a_kind_lacks_or_does_not_read_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**fields)


LLAMA3_FIELDS = {
    "kind": "llama3",
    "factor": 4.0,
    "original_length": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN_FIELDS = {"kind": "yarn", "factor": 4.0, "original_length": 64}
LONGROPE_FIELDS = {**YARN_FIELDS, "kind": "longrope", "short_factors": (1.0, 2.0), "long_factors": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**LLAMA3_FIELDS, "factor": 0.0}, r"factor=0\.0 must be a finite number above 0"),
        (
            {**LLAMA3_FIELDS, "low_freq_factor": -1.0},
            r"low_freq_factor=-1\.0 must be a finite number above 0",
        ),
        ({**LLAMA3_FIELDS, "high_freq_factor": float("inf")}, "high_freq_factor=inf must be a finite number"),
        (
            {**LLAMA3_FIELDS, "low_freq_factor": 8.0},
            r"low_freq_factor=8\.0 must not be above high_freq_factor=4\.0",
        ),
        ({**YARN_FIELDS, "beta_fast": -3.0}, r"beta_fast=-3\.0 must be a finite number above 0"),
        ({**YARN_FIELDS, "beta_slow": 0.0}, r"beta_slow=0\.0 must be a finite number above 0"),
        ({**YARN_FIELDS, "beta_slow": 40.0}, r"beta_slow=40\.0 must not be above beta_fast=32\.0"),
        ({**YARN_FIELDS, "attention_factor": 0.0}, r"attention_factor=0\.0 must be a finite number above 0"),
        ({**YARN_FIELDS, "mscale": -1.0}, r"mscale=-1\.0 must be a finite number of at least 0"),
        (
            {**YARN_FIELDS, "mscale_all_dim": float("nan")},
            "mscale_all_dim=nan must be a finite number of at least 0",
        ),
        ({**YARN_FIELDS, "original_length": 0}, "original_length=0 must be at least 1"),
        ({**LONGROPE_FIELDS, "original_length": 1}, "original_length=1 must be at least 2"),
        (
            {**LONGROPE_FIELDS, "long_factors": (1.0, 0.0)},
            r"long_factors\[1\]=0\.0 must be a finite number above 0",
        ),
    ],
)
def test_numbers_for_which_a_scaling_is_undefined_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**fields)


def test_longrope_factors_are_one_a_pair():
    with pytest.raises(ValueError, match="short_factors holds 16 numbers for 8 turning pairs"):
        frequencies(16, THETA, LONG, 5)
