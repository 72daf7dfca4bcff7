"""The CPU devices that stand beside a mesh of accelerators, and the step whose optimizer runs on them.

The processor owns the train state. A step copies the variables the loss reads to the accelerators, which
compute the model's passes, and takes gradient and statistics back; accumulation, optimizer, average and
effects happen on the CPU devices, split there as they would be on the accelerators (ZeRO-Offload,
arXiv:2101.06840).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dew.objectives.base import Batch
from dew.training.compiled import CompiledStep
from dew.training.mesh import replicated
from dew.training.offload import on_device, transferred
from dew.training.replay import ReplayWindow
from dew.training.state import TrainState
from dew.training.step import StepResult
from dew.training.window import Window

COUNT_OPTION = "--xla_force_host_platform_device_count"


def companion(mesh: Mesh) -> Mesh:
    """The mesh of CPU devices of the same shape; each process has as many of them as accelerators.

    A mesh of CPU devices is its own companion.

    Raises:
        ValueError: a process whose CPU devices are not as many as its accelerators.
    """
    if mesh.devices.flat[0].platform == "cpu":
        return mesh
    accelerators: dict[int, list[Any]] = defaultdict(list)
    for device in sorted(mesh.devices.flat, key=lambda device: device.id):
        accelerators[device.process_index].append(device)
    beside: dict[Any, Any] = {}
    for process, own in accelerators.items():
        processors = [device for device in _processors() if device.process_index == process]
        if len(processors) != len(own):
            raise ValueError(
                f"layout.host names params, and process {process} has {len(own)} accelerators beside "
                f"{len(processors)} CPU devices; set trainer.xla_flags={COUNT_OPTION}={len(own)} "
                "(before JAX starts), or name opt_state and ema in layout.host instead"
            )
        beside.update(zip(own, processors, strict=True))
    devices = np.array([beside[device] for device in mesh.devices.flat], dtype=object)
    return Mesh(devices.reshape(mesh.devices.shape), mesh.axis_names, axis_types=mesh.axis_types)


def moved(tree: Any, mesh: Mesh) -> Any:
    """The tree on the devices of `mesh`, each array split as it was; what is there already stays."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or not isinstance(leaf.sharding, NamedSharding):
            return leaf
        place = NamedSharding(mesh, leaf.sharding.spec)
        return leaf if leaf.sharding == place else transferred(leaf, place)

    return jax.tree.map(move, tree)


def reading(state: TrainState) -> TrainState:
    """The parts of the state that a pass of the model may read."""
    return replace(state, opt_state=None, accumulation=None)


def read_on(mesh: Mesh, state: TrainState) -> TrainState:
    """`reading(state)` in the memory of the devices of `mesh`."""
    return on_device(moved(reading(state), mesh))


class CompanionStep:
    """`(state, batch) -> StepResult` like `CompiledStep`, over a state that the CPU devices own.

    Attributes:
        work: the part on the accelerators, from state and batch to the results of the model's passes.

    Args:
        step: as `CompiledStep` takes it, but from the results of the model's passes.
        work: `window.work`, or that in a context; runs on the accelerators.
        window: how microbatches come together.
        size: microbatches in a window.
        state: placed on `beside`.
        batch: placed on `mesh`.
        mesh: of the accelerators.
        beside: its companion.

    Raises:
        ValueError: an accumulation window that replays its microbatches.
    """

    def __init__(
        self,
        step: Callable[[TrainState, Any], StepResult],
        work: Callable[[TrainState, Batch], Any],
        window: Window,
        size: int,
        state: TrainState,
        batch: Batch,
        *,
        mesh: Mesh,
        beside: Mesh,
    ) -> None:
        if isinstance(window, ReplayWindow):
            raise ValueError(
                f"layout.host names params with accumulation={size}, and this objective's loss is no single "
                "ratio, so a window's gradient needs the model's passes again at its end; use "
                "accumulation=1, or name opt_state and ema in layout.host"
            )
        self._mesh, self._beside = mesh, beside
        self.work = _Work(work, state, batch, mesh)
        self._settled = CompiledStep(step, None if size == 1 else window, state, batch, beside)

    def __call__(self, state: TrainState, batch: Batch) -> StepResult:
        work = moved(self.work(state, batch), self._beside)
        return self._settled(state, work)


class _Work:
    """A window's work on the accelerators, given those leaves of the state alone that it reads."""

    def __init__(
        self, run: Callable[[TrainState, Batch], Any], state: TrainState, batch: Batch, mesh: Mesh
    ) -> None:
        self._mesh = mesh
        leaves, structure = jax.tree.flatten(reading(state))

        def work(leaves: list[jax.Array], batch: Batch) -> Any:
            return run(jax.tree.unflatten(structure, leaves), batch)

        with jax.set_mesh(mesh):
            traced, results = jax.make_jaxpr(work, return_shape=True)(leaves, batch)
        self._read = _read_leaves(traced.jaxpr, len(leaves))
        absent = {index: leaf for index, leaf in enumerate(leaves) if index not in self._read}
        shapes = {index: (leaf.shape, leaf.dtype) for index, leaf in absent.items()}

        def over_read(read: dict[int, jax.Array], batch: Batch) -> Any:
            zeros = {index: jnp.zeros(*shape) for index, shape in shapes.items()}
            filled = read | zeros
            return work([filled[index] for index in range(len(filled))], batch)

        places = _result_places(results, state.params["params"], mesh)
        self._jitted = jax.jit(over_read, out_shardings=places)

    def __call__(self, state: TrainState, batch: Batch) -> Any:
        leaves = jax.tree.leaves(reading(state))
        read = moved({index: leaves[index] for index in self._read}, self._mesh)
        with jax.set_mesh(self._mesh):
            return self._jitted(read, batch)


def _read_leaves(jaxpr: Any, count: int) -> tuple[int, ...]:
    """Which of the first `count` arguments any equation or result names."""
    named = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    named |= {id(variable) for variable in jaxpr.outvars}
    return tuple(index for index, variable in enumerate(jaxpr.invars[:count]) if id(variable) in named)


def _result_places(results: Any, params: Any, mesh: Mesh) -> Any:
    """Gradients lie as their parameters do, everything else whole on every device."""
    whole = jax.tree.map(lambda _: replicated(mesh), results)
    specs = jax.tree.map(lambda leaf: NamedSharding(mesh, leaf.sharding.spec), params)
    return whole._replace(gradient=specs)


def _processors() -> Sequence[Any]:
    try:
        return sorted(jax.devices("cpu"), key=lambda device: device.id)
    except RuntimeError as error:
        raise ValueError(
            f"layout.host names params, and JAX has no CPU devices here ({error}); let JAX_PLATFORMS hold "
            "cpu beside the accelerator, or name opt_state and ema in layout.host instead"
        ) from error
