"""Training through the objective reaches the least error that any denoiser of the mixture can have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from dew.diffusion.presets import EDM
from dew.inputs import Field, InputSpec
from dew.objectives.base import Step, scalar_loss
from dew.objectives.diffusion import DiffusionObjective

FLOOR = {0.02: 3.9613e-4, 0.1: 8.1262e-3, 0.3: 4.2722e-2, 1.0: 0.353448, 5.0: 0.574514, 80.0: 0.588046}
"""Noise level -> the mixture's least mean squared error."""
STEPS, ROWS = 3000, 1024


class Perceptron(nn.Module):
    """Two hidden layers over the sample and its noise level."""

    @nn.compact
    def __call__(self, x, noise_level, train=False):
        hidden = jnp.concatenate([x, noise_level[:, None]], axis=-1)
        for _ in range(2):
            hidden = nn.gelu(nn.Dense(128)(hidden))
        return nn.Dense(1)(hidden)


def draw(key, rows):
    """Samples of the mixture `[rows, 1]`."""
    which, noise = jax.random.split(key)
    first = jax.random.bernoulli(which, 0.3, (rows, 1))
    normal = jax.random.normal(noise, (rows, 1))
    return jnp.where(first, -1 + 0.15 * normal, 0.6 + 0.25 * normal)


def trained(objective):
    """The parameters after training, one compiled loop."""
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, STEPS))
    params = objective.init(jax.random.key(0))

    def update(carry, index):
        params, state = carry
        key = jax.random.fold_in(jax.random.key(1), index)
        batch = {"x": draw(jax.random.fold_in(key, 0), ROWS)}
        step = Step(step=index, key=jax.random.fold_in(key, 1))
        gradient = jax.grad(lambda tree: scalar_loss(objective, tree, batch, step)[0])(params)
        change, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, change), state), None

    return jax.jit(
        lambda params: jax.lax.scan(update, (params, optimizer.init(params)), jnp.arange(STEPS))[0][0]
    )(params)


def test_trained_denoiser_is_within_five_percent_of_the_least_error(mixture):
    objective = DiffusionObjective(
        Perceptron(),
        EDM(log_mean=0.0, log_std=2.0).build(),
        InputSpec(Field("x", (1,))),
        ema_decay=None,
        guidance=None,
    )
    denoise = objective.denoiser(trained(objective), {})
    for sigma, least in FLOOR.items():
        x = np.linspace(-4 * max(1, sigma), 4 * max(1, sigma), 20_001)
        learned = denoise(jnp.asarray(x, jnp.float32)[:, None], objective.process.level(jnp.float32(sigma)))
        # What the error exceeds the least one by: the squared distance to the posterior mean.
        distance = np.asarray(learned.clean, np.float64)[:, 0] - np.asarray(mixture.mean(x, sigma))
        excess = np.trapezoid(distance**2 * mixture.density(x, sigma), x)
        assert excess / least < 0.05, (sigma, excess / least)
