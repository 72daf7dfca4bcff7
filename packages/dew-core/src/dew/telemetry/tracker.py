"""The `Tracker` a Trainer reports to. Its methods run on process zero, outside jit, without a collective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.artifacts import Artifacts


class Tracker:
    """Receives the events of one run. Every method does nothing by default: override what you need.

    Values are Python floats keyed by `phase/name` (`train/loss`, `validation/perplexity`); `step` counts
    attempted batches. A tracker that raises is reported once and left out from then on; it never stops the
    run.
    """

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        """The run begins or resumes at `step` of `total_steps`; rates count `unit`s."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Training metrics of a log tick."""

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        """Metrics of one complete validation pass."""

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        """Artifacts to show, gathered to the host."""

    def checkpointed(self, path: str, *, step: int) -> None:
        """A checkpoint is durable at `path`."""

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        """Where this process's time went up to `step`: after every log tick, and before the end.

        `seconds` by category of `dew.telemetry.account`, `first_step_s`, `compilations` and
        `step_compilations`; `devices` and `device_kind`; `memory_peak_bytes` and `memory_limit_bytes` where
        the backend reports them; `flops_per_step`, `counts`, `dtype` and `peak_flops` (None for a device
        without a published peak) where the objective knows its cost.
        """

    def finished(self, status: str, *, step: int) -> None:
        """The run ended: `completed`, `interrupted` or `failed`. Called once; flush and close here."""
