"""Guidance: which branches are evaluated, and what they are mixed to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.diffusion import Estimate
from dew.diffusion.presets import EDM
from dew.sampling import CFG, Euler, Heun, sample

KEY = jax.random.key(0)


class Branches:
    """Estimates of two constants; it counts what is evaluated where."""

    def __init__(self, process):
        self.process = process
        self.seen = []

    def _estimate(self, x, level, name, value):
        jax.debug.callback(lambda sigma: self.seen.append((name, round(float(sigma), 4))), level.sigma)
        clean = jnp.full_like(x, value)
        return Estimate(clean, (x - clean) / level.sigma)

    def __call__(self, x, level):
        return self._estimate(x, level, "given", 1.0)

    def without(self, x, level):
        return self._estimate(x, level, "blank", -2.0)


def drawn(guidance, *, solver=None, steps=6, x=None):
    branches = Branches(EDM(sigma_min=0.1, sigma_max=10.0).build())
    x = jnp.full((2, 1), 4.0) if x is None else x
    result = sample(branches, x, steps, solver=solver or Euler(), guidance=guidance, key=KEY)
    jax.effects_barrier()
    return np.asarray(result), sorted(branches.seen)


def test_scale_one_is_the_condition_alone_bit_for_bit():
    alone, seen = drawn(None)
    guided, seen_guided = drawn(CFG(1.0))
    np.testing.assert_array_equal(guided, alone)
    assert seen == seen_guided
    assert len(seen) == 6


def test_scale_zero_evaluates_no_condition():
    result, seen = drawn(CFG(0.0))
    np.testing.assert_allclose(result, -2.0)
    assert {name for name, _ in seen} == {"blank"}


def test_scale_extrapolates_from_the_unconditional_estimate():
    result, seen = drawn(CFG(3.0))
    np.testing.assert_allclose(result, -2 + 3 * (1 - -2), rtol=1e-6)
    assert len(seen) == 12


def test_outside_the_interval_the_condition_is_evaluated_alone():
    levels = EDM(sigma_min=0.1, sigma_max=10.0).build().grid(6).sigma
    inside = levels[2:4]
    _, seen = drawn(CFG(3.0, (inside[1] - 1e-6, inside[0] + 1e-6)))
    assert sorted(sigma for name, sigma in seen if name == "blank") == sorted(np.round(inside, 4))
    assert sum(name == "given" for name, _ in seen) == 6


def test_interval_that_no_level_falls_into_guides_nothing():
    alone, _ = drawn(None)
    np.testing.assert_array_equal(drawn(CFG(5.0, (100.0, 200.0)))[0], alone)


def test_interval_around_all_levels_guides_everywhere():
    np.testing.assert_array_equal(drawn(CFG(3.0, (0.0, 99.0)))[0], drawn(CFG(3.0))[0])


def test_heun_evaluates_twice_a_step_but_once_into_zero():
    _, seen = drawn(None, solver=Heun())
    assert len(seen) == 2 * 5 + 1


def test_guidance_without_an_unconditional_branch_is_refused():
    denoise = EDM().build().denoiser(lambda x, told: x)
    with pytest.raises(ValueError, match="needs the unconditional branch"):
        sample(denoise, jnp.ones((1, 1)), 2, solver=Euler(), guidance=CFG(2.0), key=KEY)


@pytest.mark.parametrize(
    "make", [lambda: CFG(float("nan")), lambda: CFG(2.0, (1.0, 1.0)), lambda: CFG(2.0, (-1.0, 1.0))]
)
def test_guidance_out_of_range_is_refused(make):
    with pytest.raises(ValueError, match=r"guidance\.(scale|interval)"):
        make()
