"""The forward process: the one convention a model is trained and sampled with.

`x_t = alpha(t) x0 + sigma(t) noise`. The process owns the schedule, what the model is told and predicts, how
training times are drawn and how errors weigh. Grids, solvers and objectives read it and repeat none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from dew.diffusion.choices import check_choice
from dew.diffusion.schedules.base import Array, Schedule, numerics
from dew.diffusion.targets import FORMS, TargetName, input_deviation
from dew.diffusion.times import TimeLaw, uniform_rows
from dew.diffusion.weights import LAWS, Weighting

if TYPE_CHECKING:
    from dew.diffusion.denoiser import Denoiser
    from dew.diffusion.grid import Grid

type Spacing = Literal["karras", "log_snr", "time"]
"""How the noise levels of a grid are spaced: even in `ratio^(1/rho)`, even in log-SNR, or even in time."""

SPACINGS: tuple[str, ...] = get_args(Spacing.__value__)
"""Every spacing."""


class Level(NamedTuple):
    """One noise level: scalars for a whole batch, or `[B]` for a level of its own in each row.

    Attributes:
        alpha: the factor of the signal.
        sigma: the factor of the noise.
        noise_level: what the model is told.
    """

    alpha: Array
    sigma: Array
    noise_level: Array


class Estimate(NamedTuple):
    """What a prediction says about a noisy sample.

    Attributes:
        clean: the estimate of x0.
        noise: the estimate of the noise; `alpha clean + sigma noise` is the noisy sample.
    """

    clean: jax.Array
    noise: jax.Array


@dataclass(frozen=True)
class Process:
    """A diffusion process with the parameterization of its model.

    Attributes:
        schedule: alpha, sigma and the model's time.
        predicts: what the model is trained to predict.
        times: the law of training times.
        weighting: how errors weigh over time.
        sigma_data: standard deviation of the data, which `edm` laws and input scaling read.
        gamma: the bound of `min_snr`.
        scale_input: divide the model's input by its standard deviation.
        spacing: how grids of this process are spaced by themselves.
        rho: the exponent of the `karras` spacing.

    Raises:
        ValueError: epsilon where no signal is left at the first time, since it does not say x0 there; a
            target, weighting or spacing of another name; or a number that is not positive.
    """

    schedule: Schedule
    predicts: TargetName
    times: TimeLaw
    weighting: Weighting = "uniform"
    sigma_data: float = 0.5
    gamma: float = 5.0
    scale_input: bool = False
    spacing: Spacing = "karras"
    rho: float = 7.0

    def __post_init__(self) -> None:
        check_choice("predicts", self.predicts, FORMS)
        check_choice("weighting", self.weighting, LAWS)
        check_choice("spacing", self.spacing, SPACINGS)
        if self.schedule.zero_snr and self.predicts == "epsilon":
            raise ValueError(
                "predicts='epsilon' says nothing about x0 where the schedule leaves no signal; "
                "use 'v', 'x0' or 'velocity'"
            )
        for name in ("sigma_data", "gamma", "rho"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value} must be positive and finite")

    def draw_times(self, key: jax.Array, rows: int | jax.Array) -> jax.Array:
        """Training times `[B]` in float32, one for each row by the row's own key.

        Args:
            key: typed PRNG key of the step.
            rows: how many rows, or their global indices `[B]`.
        """
        return self.times.quantile(uniform_rows(key, rows))

    def alpha(self, t: Array) -> Array:
        """The factor of the signal."""
        return self.schedule.alpha(t)

    def sigma(self, t: Array) -> Array:
        """The factor of the noise."""
        return self.schedule.sigma(t)

    def log_snr(self, t: Array) -> Array:
        """`log(alpha^2 / sigma^2)` in nats; minus infinity where no signal is left."""
        xp = numerics(t)
        return 2 * (xp.log(self.alpha(t)) - xp.log(self.sigma(t)))

    def level(self, t: Array) -> Level:
        """The noise level at time `t`."""
        return Level(self.alpha(t), self.sigma(t), self.schedule.noise_level(t))

    def corrupt(self, x0: jax.Array, noise: jax.Array, t: jax.Array) -> jax.Array:
        """`alpha x0 + sigma noise`, `[B, ...]`, with one time for each row."""
        level = self.level(t)
        return along_rows(level.alpha, x0) * x0 + along_rows(level.sigma, x0) * noise

    def model_input(self, x_t: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The model's inputs: the scaled sample `[B, ...]`, the noise level `[B]` in float32 or wider."""
        return self.input_at(x_t, self.level(t))

    def input_at(self, x_t: jax.Array, level: Level) -> tuple[jax.Array, jax.Array]:
        """`model_input` at a level instead of a time."""
        told = jnp.asarray(level.noise_level)
        told = told.astype(jnp.promote_types(told.dtype, jnp.float32))
        told = jnp.broadcast_to(told, (x_t.shape[0],))
        if not self.scale_input:
            return x_t, told
        return x_t / along_rows(input_deviation(level.alpha, level.sigma, self.sigma_data), x_t), told

    def coefficients(self, level: Level) -> tuple[Array, Array, Array]:
        """The target's a, b and determinant d at a level; see `dew.diffusion.targets`."""
        return FORMS[self.predicts](level.alpha, level.sigma, self.sigma_data)

    def target(self, x0: jax.Array, noise: jax.Array, t: jax.Array) -> jax.Array:
        """What the model should predict, `[B, ...]`."""
        a, b, _ = self.coefficients(self.level(t))
        return along_rows(a, x0) * x0 + along_rows(b, x0) * noise

    def weight(self, t: Array) -> Array:
        """The weight `[B]` of a row's squared prediction error."""
        level = self.level(t)
        _, _, d = self.coefficients(level)
        law = LAWS[self.weighting](level.alpha, level.sigma, d, self.sigma_data, self.gamma)
        return law / d**2

    def clean(self, prediction: jax.Array, x_t: jax.Array, t: jax.Array) -> jax.Array:
        """The x0 that a prediction at time `t` `[B]` stands for."""
        return self.estimate(prediction, x_t, self.level(t)).clean

    def estimate(self, prediction: jax.Array, x_t: jax.Array, level: Level) -> Estimate:
        """Both parts of `x_t` that a prediction at a level stands for."""
        a, b, d = (along_rows(each, x_t) for each in self.coefficients(level))
        alpha, sigma = along_rows(level.alpha, x_t), along_rows(level.sigma, x_t)
        noise = (alpha * prediction - a * x_t) / d
        # For x0 the general form is 0/0 where there is no noise; the prediction is the answer.
        clean = prediction if self.predicts == "x0" else (b * x_t - sigma * prediction) / d
        return Estimate(clean, noise)

    def denoiser(
        self,
        model: Callable[..., jax.Array],
        given: Mapping[str, Any] | None = None,
        unconditional: Mapping[str, Any] | None = None,
    ) -> Denoiser:
        """The denoiser that `model(scaled, noise_level, **given)` is under this process.

        Args:
            model: from the scaled sample `[B, ...]`, the noise level `[B]` and conditions to a prediction.
            given: the conditions by the model's keywords, arrays with a leading row axis.
            unconditional: the same without a condition, which guidance evaluates; None where nothing guides.
        """
        from dew.diffusion.denoiser import Denoiser

        return Denoiser(self, model, dict(given or {}), unconditional)

    def grid(self, steps: int, *, spacing: Spacing | None = None) -> Grid:
        """The noise levels of a trajectory of `steps` evaluations; see `dew.diffusion.grid.grid`."""
        from dew.diffusion.grid import grid

        return grid(self, steps, spacing=spacing)


def along_rows(values: Array, like: jax.Array) -> jax.Array:
    """`values` `[B]` with the axes that broadcast it over `like` `[B, ...]`; a scalar stays one."""
    values = jnp.asarray(values)
    return values.reshape(values.shape + (1,) * (like.ndim - 1)) if values.ndim else values
