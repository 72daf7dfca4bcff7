"""How well a run uses its time and its devices, measured beside the fit loop without a look at the devices.

Nothing here waits for a device: the loop's own waits are timed, and JAX says what it compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from dew.objectives.base import Batch, Objective
from dew.telemetry.account import DATA, REDONE, START, STEP, TimeAccount
from dew.telemetry.cost import StepCost
from dew.telemetry.peaks import peak_flops
from dew.training.rate import Meter, Reading

COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
"""The phases of a compilation, as JAX reports their durations; the last comes once a program."""

TRAIN_STEP = "jit(step)"
"""The name under which JAX reports the train step."""


class Performance:
    """Measures one call of `fit`.

    Args:
        objective: names the unit of rates, and what a step costs.
        mesh: the devices.
        account: of the process's time; its open category is set here.
        reached: the furthest step an earlier process of this run told of; steps up to it are done again.
    """

    def __init__(
        self, objective: Objective[Any, Any], mesh: Mesh, account: TimeAccount, *, reached: int = 0
    ) -> None:
        self.account = account
        self._objective = objective
        self._devices = list(mesh.devices.flat)
        self._reached = reached
        self._meter = Meter()
        self._costs: dict[Any, StepCost | None] = {}
        self._cost: StepCost | None = None
        self._waited = 0.0
        self._programs = self._step_programs = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Book what this thread compiles within the block."""
        owner = threading.get_ident()

        def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
            if event not in COMPILING or threading.get_ident() != owner:
                return
            self.account.compiled(duration_secs)
            if event == COMPILING[-1]:
                self._programs += 1
                self._step_programs += kwargs.get("fun_name") == TRAIN_STEP

        jax.monitoring.register_event_duration_secs_listener(heard)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(heard)

    def opening(self) -> None:
        """What follows belongs to the start, up to the first step."""
        self.account.turn(START)

    def stepping(self, step: int) -> None:
        """What follows belongs to the step after `step` completed ones."""
        self.account.turn(REDONE if step < self._reached else STEP)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """The block waits for training data."""
        with self.account.spent(DATA):
            yield

    @contextmanager
    def apart(self, category: str) -> Generator[None]:
        """The block is no training: rates leave it out, and it is booked to `category`."""
        with self._meter.paused(), self.account.spent(category):
            yield

    def stepped(self, batch: Batch, units: int) -> None:
        """Count a step on the global `batch` of so many units."""
        leaves = jax.tree.leaves(batch)
        shapes = tuple(leaf.shape for leaf in leaves)
        if shapes not in self._costs:
            self._costs[shapes] = self._objective.step_cost(batch)
        self._cost = self._costs[shapes]
        flops = None if self._cost is None else self._cost.flops
        rows = max((leaf.shape[0] for leaf in leaves if leaf.ndim), default=1)
        self._meter.add(units=units, rows=rows, flops=flops)

    def settle(self, result: Any) -> None:
        """After the first step: wait for `result`, from when on rates are counted."""
        if self._meter.running:
            return
        jax.block_until_ready(result)
        self.account.first_step()
        self._waited = self.account.seconds()[DATA]
        self._meter.start()

    def values(self) -> dict[str, float]:
        """The figures of a log tick, by name; those that are not known are left out."""
        seconds = self.account.seconds()
        values = {"performance/goodput": self.account.goodput()}
        values["performance/compilations"] = float(self._programs)
        reading = self._meter.reading()
        if reading is not None:
            values |= self._rates(reading)
            values["performance/data_wait"] = min(1.0, (seconds[DATA] - self._waited) / reading.seconds)
            self._waited = seconds[DATA]
        peak = memory(self._devices).get("memory_peak_bytes")
        if peak is not None:
            values["performance/memory_peak_bytes"] = float(peak)
        return values

    def summary(self) -> dict[str, Any]:
        """The process's account up to now, with what its figures rest on."""
        facts: dict[str, Any] = {
            "seconds": {name: round(spent, 3) for name, spent in self.account.seconds().items()},
            "first_step_s": self.account.first_step_s,
            "compilations": self._programs,
            "step_compilations": self._step_programs,
            "devices": len(self._devices),
            "device_kind": self._devices[0].device_kind,
            **memory(self._devices),
        }
        if self._cost is not None:
            facts |= {
                "flops_per_step": self._cost.flops,
                "counts": self._cost.counts,
                "dtype": self._cost.dtype,
                "peak_flops": self._peak(),
            }
        return facts

    def _peak(self) -> float | None:
        return None if self._cost is None else peak_flops(self._devices[0].device_kind, self._cost.dtype)

    def _rates(self, reading: Reading) -> dict[str, float]:
        values = {
            f"train/{self._objective.unit}_per_second": reading.units / reading.seconds,
            "performance/samples_per_second": reading.rows / reading.seconds,
            "performance/step_seconds": reading.seconds / reading.steps,
        }
        if reading.flops is not None:
            values["performance/model_flops_per_second"] = reading.flops / reading.seconds
            peak = self._peak()
            if peak is not None:
                share = reading.flops / reading.seconds / (peak * len(self._devices))
                values["performance/mfu"] = share
        return values


def memory(devices: list[Any]) -> Mapping[str, int]:
    """The highest peak among this process's devices and their limit, where the backend reports them."""
    found = [device.memory_stats() for device in devices if device.process_index == jax.process_index()]
    known = [stats for stats in found if stats]
    facts: dict[str, int] = {}
    for name, key in (("memory_peak_bytes", "peak_bytes_in_use"), ("memory_limit_bytes", "bytes_limit")):
        values = [stats[key] for stats in known if key in stats]
        if values:
            facts[name] = int(max(values))
    return facts
