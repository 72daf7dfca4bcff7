"""The train step as a jitted callable over placed arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from dew.objectives.base import Batch
from dew.training.compare import differences
from dew.training.mesh import replicated
from dew.training.offload import on_device
from dew.training.placement import accumulation_shardings
from dew.training.state import Accumulation, TrainState
from dew.training.step import StepResult
from dew.training.window import Window


class CompiledStep:
    """`(state, batch) -> StepResult`, compiled once for each batch shape; nothing is donated.

    Attributes:
        jitted: the jitted function; its state has an accumulation where the window is above one microbatch.
    """

    def __init__(
        self,
        step: Callable[[TrainState, Batch], StepResult],
        window: Window | None,
        state: TrainState,
        batch: Batch,
        mesh: Mesh,
    ) -> None:
        self._mesh = mesh
        self._window = window
        self._shardings = _shardings(replace(state, accumulation=None), mesh)
        self._empty_shape = None if window is None else jax.eval_shape(window.empty, state, batch)
        whole = replicated(mesh)
        out = StepResult(self._filled(self._shardings), whole, whole, whole, whole)  # pyright: ignore[reportArgumentType]
        self.jitted = jax.jit(_over_devices(step), out_shardings=out)

    def __call__(self, state: TrainState, batch: Batch) -> StepResult:
        with jax.set_mesh(self._mesh):
            return self.jitted(self.prepared(state, batch), batch)

    def lower(self, state: TrainState, batch: Batch) -> jax.stages.Lowered:
        """The step lowered for these arguments, to look at its text, cost and memory."""
        with jax.set_mesh(self._mesh):
            return self.jitted.lower(self.prepared(state, batch), batch)

    def prepared(self, state: TrainState, batch: Batch) -> TrainState:
        """`state` with the accumulation the step expects.

        Raises:
            ValueError: a restored partial window holds other arrays than this run's.
        """
        if self._empty_shape is None or self._window is None:
            return state
        if state.accumulation is None:
            create = jax.jit(self._window.empty, out_shardings=self._accumulation_shardings())
            with jax.set_mesh(self._mesh):
                return replace(state, accumulation=create(state, batch))
        lines = differences(self._empty_shape, state.accumulation)
        if lines:
            raise ValueError(
                "the partial accumulation window was saved by a run with other batches or another loss: "
                + "; ".join(lines[:5])
            )
        return state

    def _accumulation_shardings(self) -> Any:
        held: Accumulation | None = self._empty_shape
        return None if held is None else accumulation_shardings(held, self._shardings, self._mesh)

    def _filled(self, shardings: TrainState) -> TrainState:
        return replace(shardings, accumulation=self._accumulation_shardings())


def _over_devices(
    body: Callable[[TrainState, Batch], StepResult],
) -> Callable[[TrainState, Batch], StepResult]:
    """`body` over what rests in host memory; profiles and compilation events know it as `step`."""

    def step(state: TrainState, batch: Batch) -> StepResult:
        return body(on_device(state), batch)

    return step


def _shardings(state: TrainState, mesh: Mesh) -> TrainState:
    whole = replicated(mesh)

    def placement(leaf: Any) -> NamedSharding:
        return leaf.sharding if isinstance(leaf.sharding, NamedSharding) else whole

    return jax.tree.map(placement, state)
