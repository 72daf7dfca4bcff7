"""Solvers against the exact trajectories of a mixture: the probability-flow ODE keeps quantiles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.diffusion.presets import EDM
from dew.sampling import DDIM, DPMSolverPP, Euler, Heun, sample

INTERVALS = (20, 40, 80, 160, 320)
ORDERS = [
    (Euler(), [4.55e-2, 2.27e-2, 1.14e-2, 5.70e-3, 2.85e-3], (0.97, 1.03)),
    (DDIM(), [4.55e-2, 2.27e-2, 1.14e-2, 5.70e-3, 2.85e-3], (0.97, 1.03)),
    (Heun(), [1.35e-2, 3.03e-3, 7.23e-4, 1.77e-4, 4.37e-5], (1.95, 2.10)),
    (DPMSolverPP(), [1.62e-2, 3.45e-3, 7.97e-4, 1.92e-4, 4.71e-5], (1.95, 2.12)),
]
CLOSED = [
    (Euler(), [6.04e-2, 2.92e-2, 1.44e-2]),
    (Heun(), [2.52e-2, 5.12e-3, 1.16e-3]),
    (DPMSolverPP(), [3.60e-2, 6.35e-3, 1.35e-3]),
]


def walked(mixture, solver, process, steps, *, final_denoise, dtype=jnp.float64):
    start = 80 * jnp.asarray(mixture.starts, dtype)[:, None]
    drawn = jax.jit(
        lambda x: sample(
            mixture.denoiser(process),
            x,
            steps,
            solver=solver,
            key=jax.random.key(0),
            final_denoise=final_denoise,
        )
    )(start)
    return np.asarray(drawn)[:, 0]


def rms(difference):
    return float(np.sqrt(np.mean(np.square(difference))))


def test_mixture_map_has_the_known_values(mixture):
    exact = [-1.21722160, -0.98949233, 0.45742953, 0.55313769, 0.78763482, 1.06236424]
    np.testing.assert_allclose(mixture.transported(0.02), exact, atol=5e-9)


@pytest.mark.parametrize(("solver", "errors", "band"), ORDERS, ids=lambda each: type(each).__name__)
def test_error_falls_by_the_solver_s_order(mixture, solver, errors, band):
    with jax.enable_x64(True):
        process = EDM(sigma_min=0.02).build()
        exact = mixture.transported(0.02)
        found = [rms(walked(mixture, solver, process, n + 1, final_denoise=False) - exact) for n in INTERVALS]
    np.testing.assert_allclose(found, errors, rtol=4e-3)
    assert band[0] <= np.log2(found[-2] / found[-1]) <= band[1]


@pytest.mark.parametrize(("solver", "errors"), CLOSED, ids=lambda each: type(each).__name__)
def test_closing_estimate_leaves_the_known_error_at_sigma_zero(mixture, solver, errors):
    with jax.enable_x64(True):
        exact = mixture.transported(1e-12)
        found = [
            rms(walked(mixture, solver, EDM().build(), n, final_denoise=True) - exact) for n in (18, 36, 72)
        ]
    np.testing.assert_allclose(found, errors, rtol=4e-3)


@pytest.mark.parametrize("solver", [Euler(), Heun(), DPMSolverPP()], ids=lambda each: type(each).__name__)
def test_float32_trajectory_stays_within_1e5_of_float64(mixture, solver):
    process = EDM(sigma_min=0.02).build()
    single = walked(mixture, solver, process, 41, final_denoise=False, dtype=jnp.float32)
    with jax.enable_x64(True):
        double = walked(mixture, solver, process, 41, final_denoise=False)
    np.testing.assert_allclose(single, double, atol=1e-5)
