"""`sample`: rows on their own, one grid, precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.diffusion.presets import EDM, Flow, Linear
from dew.registry import samplers
from dew.sampling import DDIM, DDPM, EulerAncestral, Heun, sample
from dew.sampling.images import row_keys, row_noise

KEY = jax.random.key(7)
SOLVERS = [DDPM(), DDPM("fixed_large"), DDIM(0.5), EulerAncestral(), Heun()]


def model(x, told):
    return jnp.tanh(x + 0.1 * told[:, None])


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda each: repr(each))
def test_row_follows_from_its_own_key(solver):
    process = EDM().build()
    keys = row_keys(KEY, 6)
    start = row_noise(keys, (3,), 99)

    def rows(chosen):
        chosen = jnp.asarray(chosen)
        return sample(process.denoiser(model), 80 * start[chosen], 8, solver=solver, key=keys[chosen])

    together = rows(range(6))
    np.testing.assert_allclose(rows([4, 1]), together[jnp.asarray([4, 1])], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows([2])[0], together[2], rtol=1e-5, atol=1e-6)


def test_one_key_gives_each_row_the_key_folded_with_its_index():
    process = EDM().build()
    start = jnp.ones((3, 2))
    by_one = sample(process.denoiser(model), start, 5, solver=DDPM(), key=KEY)
    by_rows = sample(process.denoiser(model), start, 5, solver=DDPM(), key=row_keys(KEY, 3))
    np.testing.assert_array_equal(by_one, by_rows)
    assert not np.allclose(by_one[0], by_one[1])


def test_each_step_draws_new_noise():
    keys = row_keys(KEY, 2)
    assert not np.allclose(row_noise(keys, (4,), 0), row_noise(keys, (4,), 1))


def test_keys_of_another_number_are_refused():
    with pytest.raises(ValueError, match="one for each of the 3 rows"):
        row_keys(row_keys(KEY, 2), 3)


def test_bfloat16_network_leaves_the_trajectory_in_float32():
    seen = []

    def narrow(x, told):
        seen.append(told.dtype)
        return model(x, told).astype(jnp.bfloat16)

    drawn = sample(EDM().build().denoiser(narrow), jnp.ones((1, 2), jnp.bfloat16), 3, solver=Heun(), key=KEY)
    assert drawn.dtype == jnp.float32
    assert set(seen) == {jnp.dtype("float32")}


def test_steps_and_times_exclude_each_other():
    denoise = Flow().build().denoiser(model)
    for options in ({}, {"steps": 3, "times": [1.0, 0.5]}):
        with pytest.raises(ValueError, match="must not both be given or both be left out"):
            sample(denoise, jnp.ones((1, 1)), solver=DDIM(), key=KEY, **options)


def test_explicit_times_walk_what_steps_walk():
    process = Flow().build()
    x = jnp.ones((2, 2))
    by_steps = sample(process.denoiser(model), x, 4, solver=DDIM(), key=KEY)
    by_times = sample(process.denoiser(model), x, times=[1, 0.75, 0.5, 0.25], solver=DDIM(), key=KEY)
    to_zero = sample(
        process.denoiser(model), x, times=[1, 0.75, 0.5, 0.25, 0], solver=DDIM(), key=KEY, final_denoise=False
    )
    np.testing.assert_array_equal(by_steps, by_times)
    np.testing.assert_allclose(by_steps, to_zero, rtol=1e-6)


@pytest.mark.parametrize("name", samplers.names())
def test_every_solver_runs_from_no_signal_to_no_noise(name):
    process = Linear(zero_terminal_snr=True, predicts="v").build()
    start = row_noise(row_keys(KEY, 2), (3,), 0)
    drawn = jax.jit(lambda x: sample(process.denoiser(model), x, 7, solver=samplers.build(name), key=KEY))(
        start
    )
    assert np.isfinite(drawn).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DDIM(-0.1), "sampler.eta=-0.1"),
        (lambda: DDIM(1.5), "sampler.eta=1.5 must be at most 1"),
        (lambda: EulerAncestral(float("inf")), "sampler.eta=inf"),
        (lambda: DDPM("learned"), "sampler.variance='learned'"),
    ],
)
def test_solver_refuses_a_field_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
