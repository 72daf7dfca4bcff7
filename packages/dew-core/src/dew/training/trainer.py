"""`Trainer`: how an objective is optimized. It owns the mesh, the compiled step, averages and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import jax
import optax
from jax.sharding import Mesh

from dew.data.dataset import Dataset
from dew.objectives.base import Batch, Metric, Objective, Step, Variables
from dew.telemetry.account import TimeAccount
from dew.telemetry.config import ProfileWindow
from dew.telemetry.tracker import Tracker
from dew.training.checkpoints import Checkpoints
from dew.training.companion import CompanionStep, companion
from dew.training.compiled import CompiledStep
from dew.training.config import Layout, MeshSpec
from dew.training.distributed import check_rows
from dew.training.fit import FitPlan, run_fit
from dew.training.layout import unboxed
from dew.training.mesh import build_mesh, data_partition
from dew.training.offload import offloaded
from dew.training.placement import accumulation_shardings, create_state, described, state_shardings
from dew.training.stages import check_layers, check_stages, staged
from dew.training.state import TrainState
from dew.training.step import StepFactory, custom_step, settled_step, window_step
from dew.training.window import Window, choose_window


class Rollout(Protocol):
    """Makes the arrays a step trains on, on the host, once for each consumed batch."""

    def __call__(self, params: Variables, batch: Batch, step: Step) -> Batch:
        """Training arrays from the live variables and the dataset's batch."""
        ...


class Trainer:
    """Trains one objective with one optimizer.

    Args:
        objective: what is learned.
        optimizer: an Optax transformation over the `params` collection.
        key: typed key; seeds initialisation and every draw of the run.
        mesh: how the devices are split.
        layout: how arrays lie on them.
        accumulation: accepted microbatches to one optimizer update.
        dynamic_scale: scale the loss for half-precision gradients, and keep the scale's history in the state.
        checkpoints: where the run is saved and resumed from; borrowed.
        tracker: what hears of the run; borrowed.
        step: a factory `(objective, optimizer) -> body` with `body(state, batch) -> (state, loss, aux)`. The
            body owns every clock but `state.step`, and reads `state.window_size` and `state.scale` for
            itself.
        rollout: makes the training arrays from each batch.
        profile: the steps to trace.

    Attributes:
        account: where the process's time is booked; None begins one with each `fit`.
        reached: the furthest step that an earlier process of this run told of; steps up to it are done again,
            and booked so.

    Raises:
        TypeError: `key` is no typed scalar key.
        ValueError: `accumulation` below 1, a mesh that the objective cannot train on, or a `layout.host` that
            names an average it does not keep, or `params` beside a step factory, which owns its optimizer.
    """

    def __init__(
        self,
        objective: Objective[Any, Any],
        optimizer: optax.GradientTransformation,
        *,
        key: jax.Array,
        mesh: MeshSpec = MeshSpec(),  # noqa: B008 - frozen
        layout: Layout = Layout(),  # noqa: B008 - frozen
        accumulation: int = 1,
        dynamic_scale: bool = False,
        checkpoints: Checkpoints | None = None,
        tracker: Tracker | None = None,
        step: StepFactory | None = None,
        rollout: Rollout | None = None,
        profile: ProfileWindow | None = None,
    ) -> None:
        if not (
            hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and not key.shape
        ):
            raise TypeError(f"key={key!r} must be one typed key; make it with jax.random.key(seed)")
        if accumulation < 1:
            raise ValueError(f"accumulation={accumulation} must be at least 1")
        if step is not None and "params" in layout.host:
            raise ValueError(
                f"layout.host={layout.host!r} runs the optimizer on the CPU, and a step factory runs its own "
                "where it likes; name opt_state and ema, or leave the step to the trainer"
            )
        if "ema" in layout.host and objective.ema is None:
            raise ValueError(
                f"layout.host={layout.host!r} names ema, and {type(objective).__name__} keeps no average; "
                "leave it out"
            )
        check_layers(objective, mesh)
        objective.check_mesh(mesh)
        self.objective = objective
        self.optimizer = optimizer
        self.key = key
        self.mesh_spec = mesh
        self.layout = layout
        self.accumulation = accumulation
        self.dynamic_scale = dynamic_scale
        self.checkpoints = checkpoints
        self.tracker = tracker
        self.rollout = rollout
        self.profile = profile
        self.account: TimeAccount | None = None
        self.reached = 0
        self._step = step

    @property
    def custom(self) -> bool:
        """Whether a step factory owns the accepted and committed clocks."""
        return self._step is not None

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh over every device JAX sees."""
        return build_mesh(self.mesh_spec)

    @cached_property
    def state_mesh(self) -> Mesh:
        """Where the state lives between steps: `mesh`, or the CPU devices beside it.

        Raises:
            ValueError: `layout.host` names `params`, and a process has not one CPU device an accelerator.
        """
        return companion(self.mesh) if "params" in self.layout.host else self.mesh

    @cached_property
    def described(self) -> tuple[TrainState, TrainState]:
        """Shapes and shardings of the state, known without computing or storing anything.

        Raises:
            ValueError: a model whose sizes do not fit each other or the data, or a layout that leaves too
                much replicated.
        """
        boxed = jax.eval_shape(self._create, self.objective.initializer, self.key)
        shardings = state_shardings(boxed, self.state_mesh, self.layout)
        abstract = replace(boxed, params=unboxed(boxed.params))
        check_stages(self.objective, abstract.params, self.mesh_spec)
        self.layout.check(boxed.params["params"], shardings.params["params"], self.mesh)
        if "params" not in self.layout.host:
            shardings = offloaded(shardings, abstract, self.layout.host)
        return abstract, shardings

    def initial_state(self) -> TrainState:
        """The state before the first attempt, on the default device, not placed."""
        boxed = self._create(self.objective.initializer, self.key)
        return replace(boxed, params=unboxed(boxed.params))

    def place(self) -> tuple[TrainState, TrainState, bytes | None]:
        """The placed state, its shardings, and the data position to continue from.

        The latest checkpoint is restored into place where there is one; otherwise the state is initialised
        under jit, directly into its shardings, and the position is None.

        Raises:
            ValueError: the layout leaves too much replicated, or the checkpoint does not fit this run.
        """
        abstract, shardings = self.described
        if self.checkpoints is not None:

            def template_of(stored: Mapping[str, Any]) -> TrainState:
                return self._template(stored, abstract, shardings)

            step = self.checkpoints.latest_for(template_of)
            if step is not None:
                return self._restored(
                    self.checkpoints, step, template_of(self.checkpoints.stored(step)), shardings
                )
        create = jax.jit(self._create_unboxed, out_shardings=shardings)
        with jax.set_mesh(self.state_mesh):
            return create(self.objective.initializer, self.key), shardings, None

    def compile(self, state: TrainState, batch: Batch) -> CompiledStep | CompanionStep:
        """The step for states and batches like these: `compiled(state, batch)` returns a `StepResult`.

        Nothing is donated, since retained microbatches and pending checkpoints may own the buffers.

        Raises:
            ValueError: `layout.host` names `params`, and the window replays its microbatches.
        """
        if self._step is not None:
            step = staged(custom_step(self._step(self.objective, self.optimizer)), self.mesh_spec)
            return CompiledStep(step, None, state, batch, self.mesh)
        with jax.set_mesh(self.mesh):
            window = choose_window(self.objective, self.accumulation, state, batch)
            if "params" in self.layout.host:
                return self._beside(window, state, batch)
            step = window_step(self.objective, self.optimizer, window, self.accumulation)
            step = staged(step, self.mesh_spec)
            held = None if self.accumulation == 1 else window
            return CompiledStep(step, held, state, batch, self.mesh)

    def fit(
        self,
        data: Dataset,
        *,
        steps: int,
        log_every: int = 100,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
        metrics: Sequence[Metric[Any]] = (),
        preview: bool = False,
    ) -> TrainState:
        """Train until `steps` attempts are completed, those of a restored checkpoint included.

        Args:
            data: iterators it opens are owned and closed here.
            steps: the final attempted step. A run that is already there does no work.
            log_every: attempts between training log ticks.
            eval_every: attempts between validation passes, with one more at the end; None never validates.
            checkpoint_every: attempts between checkpoints; with `checkpoints` one is written at the end as
                well.
            metrics: reduce the validation artifacts; the best checkpoint follows the first.
            preview: draw the objective's display artifacts at each validation.

        Raises:
            ValueError: options that contradict each other or the data, or a batch that the mesh cannot split;
                raised before any work.
            Preempted: a signal asked for a stop, and the run has saved.
            RejectedSteps: twenty attempts in a row were not finite.
        """
        plan = FitPlan(
            steps=steps,
            log_every=log_every,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            metrics=tuple(metrics),
            preview=preview,
        )
        plan.check(self.objective, data)
        check_rows(data, self.mesh, self.mesh_spec)
        if data.ramp is not None and self.accumulation > 1:
            raise ValueError(
                f"accumulation={self.accumulation} with data whose batch grows ({data.ramp}): a ramp grows "
                "whole updates; use accumulation=1"
            )
        return run_fit(self, data, plan, data_partition(self.mesh))

    def _beside(self, window: Window, state: TrainState, batch: Batch) -> CompanionStep:
        step = settled_step(self.objective, self.optimizer, window, self.accumulation)
        return CompanionStep(
            step,
            staged(window.work, self.mesh_spec),
            window,
            self.accumulation,
            state,
            batch,
            mesh=self.mesh,
            beside=self.state_mesh,
        )

    def _create(self, initializer: Any, key: jax.Array) -> TrainState:
        return create_state(
            initializer,
            key,
            self.optimizer,
            ema=self.objective.ema,
            dynamic_scale=self.dynamic_scale,
            window_size=self.accumulation,
        )

    def _create_unboxed(self, initializer: Any, key: jax.Array) -> TrainState:
        boxed = self._create(initializer, key)
        return replace(boxed, params=unboxed(boxed.params))

    def _template(self, stored: Mapping[str, Any], abstract: TrainState, shardings: TrainState) -> TrainState:
        """What a checkpoint is restored into: `abstract`, with the partial window that is `stored`."""
        partial: Any = stored.get("accumulation")
        if partial is not None:
            abstract = replace(abstract, accumulation=partial)
            shardings = replace(
                shardings, accumulation=accumulation_shardings(partial, shardings, self.state_mesh)
            )
        return described(abstract, shardings)

    def _restored(
        self, checkpoints: Checkpoints, step: int, template: TrainState, shardings: TrainState
    ) -> tuple[TrainState, TrainState, bytes | None]:
        state, position = checkpoints.restore(template, step, share=data_partition(self.mesh))
        if int(state.window_size) != self.accumulation and self._step is None:
            raise ValueError(
                f"accumulation={self.accumulation}, and {checkpoints.path(step)} was written with "
                f"accumulation={int(state.window_size)}; resume with that"
            )
        return state, shardings, position
