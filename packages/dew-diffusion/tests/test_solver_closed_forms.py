"""Solvers on Gaussian data, where every step multiplies by a number that a formula gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.diffusion import Level
from dew.diffusion.grid import at_times
from dew.diffusion.presets import EDM, Cosine, Flow, Linear
from dew.sampling import CFG, DDIM, DDPM, DPMSolverPP, Euler, EulerAncestral, Heun, sample
from dew.sampling.solvers.base import fall

KEY = jax.random.key(0)
SD = Linear(beta_start=0.00085, beta_end=0.012, betas="scaled_linear")


def gain(denoise, solver, start=1.0, steps=None, **options):
    """What a trajectory multiplies its start by."""
    drawn = jax.jit(lambda x: sample(denoise, x, steps, solver=solver, key=jax.random.key(0), **options))(
        jnp.full((1, 1), start)
    )
    return float(drawn[0, 0]) / start


def variance(denoise, solver, grid, start):
    """Of the last point, from the coefficients of the start and of every draw: one axis for each."""
    walk = grid.closed()
    axes = np.eye(len(walk))
    plan = solver.plan(walk)
    x = jnp.asarray(np.sqrt(start) * axes[:1])
    history = solver.begin(x)
    for index in range(len(walk) - 1):
        row = {name: values[index] for name, values in plan.items()}

        def evaluate(x, at):
            return denoise(x, Level(walk.alpha[at], walk.sigma[at], walk.noise_level[at]))

        x, history = solver.step(
            x, index, row, history, evaluate, lambda index=index: jnp.asarray(axes[index + 1][None])
        )
    return float(jnp.sum(x**2))


@pytest.mark.parametrize(
    ("solver", "errors"),
    [(Euler(), [-0.15392, -0.07799, -0.03924, -0.01968]), (Heun(), [0.05527, 0.01221, 0.002871, 0.000691])],
    ids=["euler", "heun"],
)
def test_edm_gain_has_the_known_error(gaussian, solver, errors):
    exact = 0.5 / np.sqrt(0.25 + 6400)
    with jax.enable_x64(True):
        denoise = gaussian(EDM().build(), 0.5)
        found = [gain(denoise, solver, 80.0, n) / exact - 1 for n in (18, 36, 72, 144)]
    np.testing.assert_allclose(found, errors, atol=6e-6)


@pytest.mark.parametrize("steps", [5, 10, 20, 50, 100])
def test_ddim_step_multiplies_by_the_cosine_of_its_angle(gaussian, steps):
    with jax.enable_x64(True):
        found = gain(gaussian(Cosine(offset=0.0).build(), 1.0), DDIM(), steps=steps)
    assert found == pytest.approx(np.cos(np.pi / 2 / steps) ** steps, abs=1e-9)


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, 0.72), (10, 0.87898438), (20, 0.93769948), (50, 0.97461619)]
)
def test_euler_on_the_straight_line(gaussian, steps, expected):
    with jax.enable_x64(True):
        assert gain(gaussian(Flow().build(), 1.0), Euler(), steps=steps) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("steps", "expected"), [(4, 0.99), (10, 0.99933495)])
def test_heun_on_the_straight_line_corrected_into_zero(gaussian, steps, expected):
    with jax.enable_x64(True):
        found = gain(
            gaussian(Flow().build(), 1.0),
            Heun(into_zero=True),
            times=np.linspace(1, 0, steps + 1),
            final_denoise=False,
        )
    assert found == pytest.approx(expected, abs=1e-8)


def test_heun_takes_eulers_step_into_zero_by_itself(gaussian):
    # Three corrected steps give 0.792, and Euler's last one multiplies it by 1.2.
    with jax.enable_x64(True):
        found = gain(gaussian(Flow().build(), 1.0), Heun(), steps=4)
    assert found == pytest.approx(0.9504, abs=1e-12)


def test_heun_refuses_to_correct_at_a_level_no_model_is_told():
    with pytest.raises(ValueError, match="into_zero=True needs"):
        Heun(into_zero=True).plan(EDM().build().grid(4).closed())


@pytest.mark.parametrize(("steps", "expected"), [(20, 0.164700), (50, 0.203079)])
def test_euler_ancestral_keeps_the_known_variance(gaussian, steps, expected):
    ratios = np.exp(np.asarray(SD.build().log_snr(np.arange(1000.0))) / -2)
    sigmas = np.interp(np.linspace(999, 0, steps), np.arange(1000), ratios)
    process = EDM(sigma_max=20.0).build()
    with jax.enable_x64(True):
        found = variance(gaussian(process, 0.5), EulerAncestral(), at_times(process, sigmas), sigmas[0] ** 2)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("steps", "small"), [(10, 0.646359), (50, 0.892714), (100, 0.939582), (1000, 0.991821)]
)
def test_ddpm_keeps_the_known_variance(gaussian, steps, small):
    process = SD.build()
    grid = at_times(process, np.arange(steps)[::-1] * (1000.0 // steps))
    with jax.enable_x64(True):
        denoise = gaussian(process, 1.0)
        assert variance(denoise, DDPM(), grid, 1.0) == pytest.approx(small, abs=1e-6)
        assert variance(denoise, DDPM("fixed_large"), grid, 1.0) == pytest.approx(0.99915, abs=1e-6)


def test_drawn_noise_has_the_planned_variance(gaussian):
    process = EDM(sigma_min=0.03, sigma_max=14.6).build()
    grid = process.grid(12)
    start = grid.sigma[0] * jax.random.normal(jax.random.key(1), (200_000, 1))
    drawn = sample(gaussian(process, 0.5), start, times=grid, solver=EulerAncestral(), key=KEY)
    expected = variance(gaussian(process, 0.5), EulerAncestral(), grid, grid.sigma[0] ** 2)
    assert float(jnp.var(drawn)) == pytest.approx(expected, rel=4 * np.sqrt(2 / 200_000))


def test_ddim_with_all_noise_fresh_is_ddpm(gaussian):
    grid = SD.build().grid(9)
    for name, values in DDPM().plan(grid).items():
        np.testing.assert_allclose(DDIM(1.0).plan(grid)[name], values, rtol=1e-12)


def test_fresh_noise_is_that_of_the_ddim_paper():
    grid = SD.build().grid(9)
    before, after = grid.alpha[:-1] ** 2, grid.alpha[1:] ** 2
    paper = 0.3 * np.sqrt((1 - after) / (1 - before)) * np.sqrt(1 - before / after)
    np.testing.assert_allclose(DDIM(0.3).plan(grid)["fresh"], paper, rtol=1e-9)


def test_guided_mean_is_that_of_the_weighted_condition(gaussian):
    with jax.enable_x64(True):
        denoise = gaussian(EDM(sigma_min=1e-5).build(), 0.5, mean=1.0)
        found = sample(
            denoise, jnp.zeros((1, 1)), 4000, solver=Heun(), guidance=CFG(3.0), key=jax.random.key(0)
        )
    assert float(found[0, 0]) == pytest.approx(3 * (1 - 0.5 / np.sqrt(0.25 + 6400)), abs=3e-6)


def test_multistep_first_step_from_no_signal_and_last_step_to_zero_are_first_order(gaussian):
    walk = Flow().build().grid(4).closed()
    extrapolated = DPMSolverPP().plan(walk)["extrapolated"]
    assert extrapolated[0] == extrapolated[1] == extrapolated[-1] == 0
    assert np.isfinite(extrapolated).all()
    assert extrapolated[2] > 0
    assert fall(walk)[-1] == 0


@pytest.mark.parametrize("solver", [DDIM(), DDPM(), Euler(), EulerAncestral(), Heun(), DPMSolverPP()])
def test_trajectory_ends_at_the_estimate_of_its_last_level(gaussian, solver):
    process = EDM().build()
    calls = []

    def model(x, told):
        calls.append(told.shape)
        return 0.3 * x

    denoise = process.denoiser(model)
    grid = process.grid(1)
    x = jax.random.normal(KEY, (3, 2))
    drawn = sample(denoise, x, 1, solver=solver, key=KEY)
    level = process.level(jnp.asarray(grid.time[0], jnp.float32))
    np.testing.assert_allclose(drawn, denoise(x, level).clean, rtol=1e-6)
    assert set(calls) == {(3,)}
