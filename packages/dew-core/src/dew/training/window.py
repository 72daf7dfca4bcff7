"""The accumulation window: `K` accepted microbatches make one update, whatever their masses.

With a shared mean the loss of a window is `sum(total) / sum(mass)` and, mass being free of the parameters,
its gradient is `sum(grad total) / sum(mass)`: gradients of totals are added in working precision and divided
once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dew.objectives.base import Aux, Batch, Mean, Objective, mean_loss
from dew.training.microbatch import (
    Attempt,
    added,
    attempt_step,
    loss_factor,
    observe,
    shares_a_mean,
    split,
    unpack,
    wide_scalar,
)
from dew.training.observations import empty_observations, head_maxima, observed
from dew.training.replay import ReplayWindow
from dew.training.state import Accumulation, TrainState
from dew.training.widths import all_finite, like, widened


class Window(Protocol):
    """How the microbatches of one update come together. All methods are traced.

    `work` holds the model's passes and `attempt` little arithmetic over its results, so that the two may run
    on different devices.
    """

    def empty(self, state: TrainState, batch: Batch) -> Accumulation | None:
        """The accumulation of a window without microbatches."""
        ...

    def work(self, state: TrainState, batch: Batch) -> Any:
        """What the model's passes over `batch` yield; reads neither `opt_state` nor `accumulation`."""
        ...

    def attempt(self, state: TrainState, work: Any) -> Attempt:
        """Add the microbatch behind `work` to the window of `state`."""
        ...


def choose_window(objective: Objective[Any, Any], size: int, state: TrainState, batch: Batch) -> Window:
    """The window for this objective's statistics, found by tracing its loss once."""
    if size == 1:
        return SingleWindow(objective)

    def reported(state: TrainState, batch: Batch) -> Any:
        return observe(objective, *split(state.params), batch, attempt_step(state))

    stats, aux = jax.eval_shape(reported, state, batch)
    if shares_a_mean(objective, stats):
        return MeanWindow(objective, aux)
    return ReplayWindow(objective, size, stats, aux)


class SingleWork(NamedTuple):
    """One microbatch's finalized gradient, loss, support, finiteness of the statistics, and reports."""

    gradient: Any
    value: jax.Array
    active: jax.Array
    finite: jax.Array
    aux: Aux[Any]


class SingleWindow:
    """A window of one microbatch: the reduced loss is differentiated directly and nothing is kept."""

    def __init__(self, objective: Objective[Any, Any]) -> None:
        self._objective = objective

    def empty(self, state: TrainState, batch: Batch) -> Accumulation | None:
        return None

    def work(self, state: TrainState, batch: Batch) -> SingleWork:
        params, rest = split(state.params)
        step = attempt_step(state)
        factor = loss_factor(state.scale)

        def scaled(params: Any) -> tuple[jax.Array, Any]:
            stats, aux = observe(self._objective, params, rest, batch, step)
            value, active = self._objective.reduce_loss(stats)
            wide = wide_scalar(value)
            return wide * factor, (wide, jnp.asarray(active), all_finite(stats), aux)

        gradient, (value, active, finite, aux) = jax.grad(scaled, has_aux=True)(params)
        if state.scale is not None:
            gradient = like(jax.tree.map(lambda leaf: leaf / factor, widened(gradient)), gradient)
        return SingleWork(gradient, value, active, finite, aux)

    def attempt(self, state: TrainState, work: SingleWork) -> Attempt:
        finite_loss = jnp.isfinite(work.value)
        return Attempt(
            value=work.value,
            active=work.active,
            finite=work.finite & finite_loss,
            finite_loss=finite_loss,
            aux=work.aux,
            gradient=lambda: work.gradient,
            effects=work.aux.effects,
            logits=head_maxima(work.aux.qk_stats),
            accumulation=None,
        )


class MeanWork(NamedTuple):
    """One microbatch's gradient of its total in working precision, the total, its mass, and reports."""

    gradient: Any
    total: jax.Array
    mass: jax.Array
    aux: Aux[Any]


class MeanWindow:
    """Gradients of totals and the totals themselves, added over the window and divided by the summed mass."""

    def __init__(self, objective: Objective[Any, Any], aux: Aux[Any]) -> None:
        self._objective = objective
        self._aux = aux

    def empty(self, state: TrainState, batch: Batch) -> Accumulation:
        params, _ = split(state.params)
        zeros = jax.tree.map(jnp.zeros_like, widened(jax.tree.map(jnp.zeros_like, params)))
        scalar = wide_scalar(0.0)
        return {"gradient": zeros, "total": scalar, "mass": scalar, **empty_observations(self._aux)}

    def work(self, state: TrainState, batch: Batch) -> MeanWork:
        params, rest = split(state.params)
        step = attempt_step(state)

        def total_of(params: Any) -> tuple[jax.Array, Any]:
            stats, aux = observe(self._objective, params, rest, batch, step)
            return wide_scalar(stats.total), (jax.lax.stop_gradient(wide_scalar(stats.mass)), aux)

        total, pull, (mass, aux) = jax.vjp(total_of, params, has_aux=True)
        # Half precision differentiates the scaled mean, whose range the scale fits, and restores the sum.
        unit = jnp.where(mass > 0, mass, 1) if state.scale is not None else jnp.ones_like(mass)
        factor = jnp.asarray(loss_factor(state.scale), total.dtype)
        (pulled,) = pull((factor / unit).astype(total.dtype))
        gradient = widened(pulled)
        if state.scale is not None:
            gradient = jax.tree.map(lambda leaf: leaf * (unit / factor), gradient)
        return MeanWork(gradient, total, mass, aux)

    def attempt(self, state: TrainState, work: MeanWork) -> Attempt:
        held = state.accumulation
        assert held is not None, "a window above one microbatch starts from its empty accumulation"
        params, _ = split(state.params)
        summed: Accumulation = {
            "gradient": added(held["gradient"], work.gradient),
            "total": held["total"] + work.total,
            "mass": held["mass"] + work.mass,
            **observed(held, work.aux),
        }
        value, active = mean_loss(Mean(summed["total"], summed["mass"]))
        return Attempt(
            value=value,
            active=active,
            finite=all_finite((work.gradient, work.total, work.mass)),
            finite_loss=jnp.isfinite(value),
            aux=work.aux,
            gradient=lambda: like(
                jax.tree.map(lambda leaf: leaf / summed["mass"], summed["gradient"]), params
            ),
            effects=unpack(summed["effects"], work.aux.effects),
            logits=unpack(summed["logits"], head_maxima(work.aux.qk_stats)),
            accumulation=summed,
        )
