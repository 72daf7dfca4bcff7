"""The process against closed forms: schedules, conversions, weights, training times, loss floors."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.diffusion import Process
from dew.diffusion.presets import EDM, Cosine, Flow, Karras, Linear
from dew.diffusion.schedules import BetaTable, CosineAngle, Exploding, StraightLine
from dew.diffusion.schedules.straight_line import shifted
from dew.diffusion.times import Uniform, UniformIndex

SD = BetaTable(0.00085, 0.012, betas="scaled_linear")
ZERO = dataclasses.replace(SD, zero_terminal_snr=True)
STD = 0.5


def of_target(schedule, predicts, weighting="uniform", **fields):
    return Process(schedule=schedule, predicts=predicts, times=Uniform(), weighting=weighting, **fields)


def paper_target(name, alpha, sigma, x0, noise):
    x_t = alpha * x0 + sigma * noise
    root = np.sqrt(sigma**2 + STD**2)
    return {
        "epsilon": noise,
        "x0": x0,
        "v": alpha * noise - sigma * x0,
        "velocity": noise - x0,
        # Table 1 of arXiv:2206.00364: D = c_skip x + c_out F.
        "edm": (x0 - STD**2 / root**2 * x_t) / (sigma * STD / root),
    }[name]


PAIRS = [
    (Exploding(), ("epsilon", "x0", "v", "velocity", "edm")),
    (CosineAngle(), ("x0", "v", "velocity")),
    (SD, ("epsilon", "x0", "v", "velocity")),
    (StraightLine(), ("x0", "v", "velocity")),
]


@pytest.mark.parametrize(
    ("schedule", "name"), [(schedule, name) for schedule, names in PAIRS for name in names]
)
def test_target_is_the_paper_s_and_converts_back(schedule, name):
    with jax.enable_x64(True):
        process = of_target(schedule, name, sigma_data=STD)
        t = jnp.asarray([0.1, 0.4, 0.9]) * schedule.first_time
        x0, noise = jax.random.normal(jax.random.key(0), (2, 3, 5), jnp.float64)
        alpha, sigma = (np.asarray(each(t))[:, None] for each in (process.alpha, process.sigma))
        target = process.target(x0, noise, t)
        x_t = process.corrupt(x0, noise, t)
        both = process.estimate(target, x_t, process.level(t))
        expected = paper_target(name, alpha, sigma, np.asarray(x0), np.asarray(noise))
        np.testing.assert_allclose(target, expected, rtol=1e-9)
        np.testing.assert_allclose(process.clean(target, x_t, t), x0, atol=1e-9)
        np.testing.assert_allclose(both.noise, noise, atol=1e-9)


def test_scaled_input_and_level_are_those_of_edm():
    t = jnp.asarray([0.02, 1.0, 80.0])
    scaled, told = EDM().build().model_input(jnp.ones((3, 2)), t)
    np.testing.assert_allclose(scaled[:, 0], 1 / np.sqrt(np.asarray(t) ** 2 + 0.25), rtol=1e-6)
    np.testing.assert_allclose(told, np.log(t) / 4, atol=1e-6)


def test_model_is_told_the_time_in_float32_whatever_its_input_is():
    image = jnp.zeros((1, 2), jnp.bfloat16)
    table = Linear().build()
    told = table.model_input(image, jnp.asarray([937.0]))[1]
    assert told.dtype == jnp.float32
    assert told[0] == 937
    level = table.level(jnp.asarray(937, jnp.bfloat16))
    assert table.input_at(image, level)[1].dtype == jnp.float32


def test_flow_and_cosine_tell_times_on_the_thousand_scale():
    for preset in (Flow(), Cosine()):
        told = preset.build().model_input(jnp.zeros((2, 1)), jnp.asarray([0.1, 0.9]))[1]
        np.testing.assert_allclose(told, [100, 900], rtol=1e-6)


def test_stable_diffusion_table():
    abar = np.asarray(SD.alpha(np.asarray([0.0, 500.0, 999.0]))) ** 2
    np.testing.assert_allclose(abar, [0.99915, 0.27633268, 0.0046600985], rtol=2e-8)
    np.testing.assert_allclose(SD.ratios, [0.0291671582, 14.6146412], rtol=1e-8)


def test_ddpm_table():
    table = BetaTable()
    assert table.alpha(np.asarray([999.0]))[0] ** 2 == pytest.approx(4.0358298e-5, rel=1e-7)
    assert table.ratios[1] == pytest.approx(157.407281, rel=1e-8)


def test_rescaled_table_ends_without_signal():
    abar = np.asarray(ZERO.alpha(np.asarray([0.0, 500.0, 998.0, 999.0]))) ** 2
    np.testing.assert_allclose(abar[:3], [0.99915, 0.24101878, 1.9678880e-7], rtol=4e-8)
    assert abar[3] == 0
    assert ZERO.sigma(jnp.asarray(999.0)) == 1
    assert ZERO.alpha(jnp.asarray(999.0)) == 0


def test_table_in_float32_keeps_its_precision():
    t = np.arange(1000.0)
    np.testing.assert_allclose(SD.alpha(jnp.asarray(t, jnp.float32)), SD.alpha(t), rtol=3e-6)


def test_table_between_entries_is_even_in_log_snr():
    process = of_target(SD, "v")
    logs = np.asarray(process.log_snr(np.asarray([7.0, 7.25, 8.0])))
    assert logs[1] == pytest.approx(0.75 * logs[0] + 0.25 * logs[2], rel=1e-12)
    ratio = np.exp(-logs / 2)
    np.testing.assert_allclose(SD.time_of(ratio), [7.0, 7.25, 8.0], atol=1e-9)


def test_cosine_schedule_is_the_paper_s():
    t = np.asarray([0.0, 0.3, 0.8, 1.0])
    f = np.cos(np.pi / 2 * (t + 0.008) / 1.008) ** 2
    schedule = CosineAngle()
    np.testing.assert_allclose(np.asarray(schedule.alpha(t)) ** 2, f / f[0], atol=1e-12)
    np.testing.assert_allclose(np.asarray(schedule.sigma(t)) ** 2, 1 - f / f[0], atol=1e-12)
    assert schedule.alpha(jnp.asarray(1.0)) == 0
    middle = t[1:3]
    ratio = np.asarray(schedule.sigma(middle)) / np.asarray(schedule.alpha(middle))
    np.testing.assert_allclose(schedule.time_of(ratio), middle, atol=1e-12)


def test_v_without_signal_says_x0_with_its_sign():
    process = of_target(ZERO, "v")
    x_t, prediction = jnp.ones((1, 2)), jnp.asarray([[0.25, -3.0]])
    np.testing.assert_array_equal(process.clean(prediction, x_t, jnp.asarray([999.0])), -prediction)


@pytest.mark.parametrize("schedule", [ZERO, CosineAngle(), StraightLine()])
def test_epsilon_is_refused_where_no_signal_is_left(schedule):
    with pytest.raises(ValueError, match="predicts='epsilon' says nothing about x0"):
        of_target(schedule, "epsilon")


def test_preset_refuses_epsilon_on_the_rescaled_table():
    with pytest.raises(ValueError, match=r"preset.predicts='epsilon' .* preset.zero_terminal_snr"):
        Linear(zero_terminal_snr=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EDM(sigma_min=0.0), "preset.sigma_min=0.0 must be positive"),
        (lambda: Karras(sigma_min=90.0), "preset.sigma_min=90.0 must be below"),
        (lambda: Cosine(offset=-1.0), "preset.offset=-1.0"),
        (lambda: Linear(beta_end=1.0), "preset.beta_end=1.0"),
        (lambda: Linear(timesteps=1), "preset.timesteps=1"),
        (lambda: Flow(shift=0.0), "preset.shift=0.0"),
        (lambda: of_target(SD, "v", gamma=0.0), "gamma=0.0 must be positive"),
        (lambda: of_target(SD, "eps"), "predicts='eps' must be one of epsilon, x0"),
        (lambda: of_target(SD, "v", "snr"), "weighting='snr' must be one of uniform, edm, min_snr"),
        (lambda: of_target(SD, "v", spacing="even"), "spacing='even' must be one of karras, log_snr, time"),
        (lambda: of_target(SD, "v").grid(4, spacing="even"), "spacing='even'"),
        (lambda: Linear(betas="cosine").build(), "betas='cosine' must be one of linear, scaled_linear"),
        (lambda: Flow(times="normal"), "preset.times='normal' must be one of logit_normal, uniform"),
    ],
)
def test_value_out_of_range_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_min_snr_weight_of_each_target():
    t = np.asarray([0.0, 300.0, 700.0])
    alpha, sigma = np.asarray(SD.alpha(t)), np.asarray(SD.sigma(t))
    snr = alpha**2 / sigma**2
    expected = {
        "epsilon": np.minimum(snr, 5) / snr,
        "v": np.minimum(snr, 5) / (snr + 1),
        "x0": np.minimum(snr, 5),
    }
    for name, weight in expected.items():
        np.testing.assert_allclose(of_target(SD, name, "min_snr").weight(t), weight, rtol=1e-9)


def test_every_weight_is_finite_on_the_rescaled_table():
    t = jnp.arange(1000.0)
    for name in ("v", "x0"):
        assert jnp.isfinite(of_target(ZERO, name, "min_snr").weight(t)).all()
    assert of_target(ZERO, "v", "min_snr").weight(t)[-1] == 0


def test_errors_of_every_target_are_one_loss():
    t = np.asarray([50.0, 400.0, 900.0])
    snr = np.exp(np.asarray(of_target(SD, "v").log_snr(t)))
    # The error of x0 for an error of 1 in the target, squared, is (sigma / d)^2.
    for name, factor in (("epsilon", 1 / snr), ("v", 1 / (snr + 1)), ("x0", np.ones(3))):
        process = of_target(SD, name)
        d = process.coefficients(process.level(t))[2]
        np.testing.assert_allclose((np.asarray(SD.sigma(t)) / d) ** 2, factor, rtol=1e-9)


def test_edm_weight_of_the_x0_error():
    process = EDM().build()
    t = np.asarray([0.01, 0.3, 20.0])
    d = process.coefficients(process.level(t))[2]
    of_x0 = np.asarray(process.weight(t)) * (d / t) ** 2
    np.testing.assert_allclose(of_x0, (t**2 + 0.25) / (0.5 * t) ** 2, rtol=1e-12)
    np.testing.assert_allclose(process.weight(t), 1, rtol=1e-12)


def test_edm_training_noise_has_the_paper_s_quantiles():
    quantiles = EDM().build().times.quantile(jnp.asarray([0.05, 0.5, 0.95]))
    np.testing.assert_allclose(quantiles, [0.041843, 0.301194, 2.168042], rtol=2e-5)


def test_drawn_noise_levels_are_log_normal():
    drawn = np.log(EDM().build().draw_times(jax.random.key(3), 40_000))
    assert drawn.mean() == pytest.approx(-1.2, abs=4 * 1.2 / 200)
    assert drawn.std() == pytest.approx(1.2, abs=4 * 1.2 / np.sqrt(80_000))


def test_karras_training_noise_is_that_of_its_grid():
    process = Karras().build()
    np.testing.assert_allclose(
        process.times.quantile(jnp.linspace(1, 0, 18)), process.grid(18).sigma, rtol=2e-5
    )


def test_index_law_reaches_both_ends_evenly():
    law = UniformIndex(4)
    np.testing.assert_array_equal(
        law.quantile(jnp.asarray([2.0**-24, 0.24, 0.26, 1 - 2.0**-24])), [0, 0, 1, 3]
    )


def test_shift_of_a_flow():
    np.testing.assert_allclose(
        shifted(np.asarray([0.5, 0.001, 0.0, 1.0]), 3.0), [0.75, 0.002994012, 0, 1], rtol=1e-7
    )


def test_shifted_training_times_lie_above_a_half_as_often_as_they_should():
    law = Flow(shift=3.0).build().times
    u = jnp.linspace(0, 1, 200_001)[1:-1]
    assert float(jnp.mean(law.quantile(u) > 0.5)) == pytest.approx(0.8640314, abs=1e-5)


def loss(process, t, predict, deviation=1.0):
    """The weighted expected loss at each time for Gaussian data: x0 and the noise are two orthogonal axes."""
    x0 = jnp.broadcast_to(jnp.asarray([deviation, 0.0]), (len(t), 2))
    noise = jnp.broadcast_to(jnp.asarray([0.0, 1.0]), (len(t), 2))
    error = process.target(x0, noise, t) - predict(process, process.corrupt(x0, noise, t), t, deviation)
    return float(jnp.mean(process.weight(t) * jnp.sum(error**2, axis=1)))


def nothing(process, x_t, t, deviation):
    return jnp.zeros_like(x_t)


def best(process, x_t, t, deviation):
    alpha, sigma = process.alpha(t)[:, None], process.sigma(t)[:, None]
    surprise = x_t / (alpha**2 * deviation**2 + sigma**2)
    return process.target(deviation**2 * alpha * surprise, sigma * surprise, t)


def times(process, count=100_000):
    return process.times.quantile((jnp.arange(count) + 0.5) / count)


@pytest.mark.parametrize(
    ("preset", "predict", "deviation", "expected"),
    [
        (EDM(), nothing, 0.5, 1.0),
        (EDM(), best, 0.5, 1.0),
        (Flow(times="uniform"), nothing, 1.0, 2.0),
        (Flow(times="uniform"), best, 1.0, np.pi / 2),
        (Flow(), best, 1.0, 1.7412643),
        (Cosine(), best, 1.0, 1.0),
        (Linear(beta_start=0.00085, beta_end=0.012, betas="scaled_linear"), best, 1.0, 0.3733766),
        (
            Linear(beta_start=0.00085, beta_end=0.012, betas="scaled_linear", predicts="x0"),
            best,
            1.0,
            0.6266234,
        ),
        (
            Linear(beta_start=0.00085, beta_end=0.012, betas="scaled_linear", predicts="v"),
            best,
            1.0,
            1.0,
        ),
    ],
)
def test_loss_floor(preset, predict, deviation, expected):
    with jax.enable_x64(True):
        process = preset.build()
        assert loss(process, times(process), predict, deviation) == pytest.approx(expected, abs=1e-6)


def test_edm_loss_floor_of_the_mixture(mixture):
    x = np.linspace(-12, 12, 40_001)
    sigmas = np.asarray([0.02, 0.1, 0.3, 1.0, 5.0, 80.0])
    with jax.enable_x64(True):
        errors = []
        for sigma in sigmas:
            at = x * max(1.0, sigma)
            # E[x0^2] - E[E[x0 | x]^2], the variance that is left.
            explained = np.asarray(mixture.mean(at, sigma)) ** 2 * mixture.density(at, sigma)
            errors.append(0.5881 + 0.12**2 - np.trapezoid(explained, at))
    np.testing.assert_allclose(
        errors, [3.9613e-4, 8.1262e-3, 4.2722e-2, 0.353448, 0.574514, 0.588046], rtol=2e-4
    )
    process = EDM().build()
    d = process.coefficients(process.level(sigmas))[2]
    weighted = np.asarray(process.weight(sigmas)) * (d / sigmas) ** 2 * errors
    np.testing.assert_allclose(weighted, [0.9919, 0.8451, 0.6456, 1.7672, 2.3210, 2.3523], rtol=3e-4)


def test_row_draws_its_time_whatever_stands_beside_it():
    process, key = EDM().build(), jax.random.key(5)
    many = process.draw_times(key, 8)
    np.testing.assert_array_equal(process.draw_times(key, 3), many[:3])
    np.testing.assert_array_equal(process.draw_times(key, jnp.asarray([6, 2])), many[jnp.asarray([6, 2])])
    assert len(np.unique(many)) == 8
