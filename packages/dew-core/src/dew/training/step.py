"""The train step: one attempt from state and batch to the next state. It closes over no array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.objectives.base import Aux, Batch, Objective
from dew.training.commit import settle
from dew.training.microbatch import joined
from dew.training.scale import adjusted
from dew.training.state import TrainState
from dew.training.widths import chosen
from dew.training.window import Window

type StepBody = Callable[[TrainState, Batch], tuple[TrainState, jax.Array, Aux[Any]]]
"""What a custom `step(objective, optimizer)` factory returns. It owns every clock but `state.step`."""

type StepFactory = Callable[[Objective[Any, Any], optax.GradientTransformation], StepBody]


class StepResult(NamedTuple):
    """What one compiled attempt returns.

    Attributes:
        state: the next state; `state.step` counts this attempt whether or not it was accepted.
        loss: the loss over the window's accepted prefix, this attempt included; NaN where nothing has
            support.
        metrics: the loss's measurements of this microbatch.
        loss_finite: whether the statistics are finite; true as well where they have no support.
        accepted: whether the microbatch entered the window. A finite loss can have a gradient that is not.
    """

    state: TrainState
    loss: jax.Array
    metrics: Mapping[str, jax.Array]
    loss_finite: jax.Array
    accepted: jax.Array


def window_step(
    objective: Objective[Any, Any], optimizer: optax.GradientTransformation, window: Window, size: int
) -> Callable[[TrainState, Batch], StepResult]:
    """The step of a run that accumulates `size` microbatches in `window`."""
    settled = settled_step(objective, optimizer, window, size)

    def step(state: TrainState, batch: Batch) -> StepResult:
        return settled(state, window.work(state, batch))

    return step


def settled_step(
    objective: Objective[Any, Any], optimizer: optax.GradientTransformation, window: Window, size: int
) -> Callable[[TrainState, Any], StepResult]:
    """The part of `window_step` after the model's passes, from their results to the next state."""

    def step(state: TrainState, work: Any) -> StepResult:
        attempt = window.attempt(state, work)
        full = True if size == 1 else state.microstep % size == size - 1
        moved, accepted = settle(objective, optimizer, state, attempt, full)
        accumulation = state.accumulation
        if attempt.accumulation is not None:
            emptied = jax.tree.map(
                lambda leaf: jnp.where(full, jnp.zeros_like(leaf), leaf), attempt.accumulation
            )
            accumulation = chosen(accepted, emptied, accumulation)
        after = replace(
            state,
            step=state.step + 1,
            microstep=state.microstep + accepted.astype(jnp.int32),
            updates=moved.updates,
            params=joined(moved.params, moved.rest),
            opt_state=moved.opt_state,
            ema=moved.ema,
            scale=None if state.scale is None else adjusted(state.scale, accepted),
            accumulation=accumulation,
        )
        loss = jnp.where(attempt.active | ~attempt.finite, attempt.value, jnp.nan)
        return StepResult(after, loss, dict(attempt.aux.metrics), attempt.finite_loss, accepted)

    return step


def custom_step(body: StepBody) -> Callable[[TrainState, Batch], StepResult]:
    """The step around a body of the user's own.

    It advances the attempted clock and reads the accepted one.
    """

    def step(state: TrainState, batch: Batch) -> StepResult:
        after, loss, aux = body(state, batch)
        accepted = after.microstep > state.microstep
        after = replace(after, step=state.step + 1)
        return StepResult(after, loss, dict(aux.metrics), jnp.isfinite(loss), accepted)

    return step
