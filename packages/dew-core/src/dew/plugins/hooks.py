"""The hooks a plugin can implement: it states `DEW_CONTRACT = 1` and marks functions with `hookimpl`.

The lifecycle hooks run on process zero, outside jit, between steps. A hook takes the arguments it names and
may leave out the others. One that raises is reported once and its plugin hears no more of that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pluggy

from dew.plugins.component import Component

PROJECT = "dew"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin module's function as the implementation of the hook of the same name."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a lifecycle hook is told about the run it hears of.

    Attributes:
        directory: the run directory.
        record: the configuration as `run.json` holds it.
    """

    directory: str
    record: Mapping[str, object] = field(default_factory=dict[str, object])


@hookspec
def dew_components() -> Iterable[Component]:  # pyright: ignore[reportReturnType]
    """The parts this plugin adds. Called once; imports nothing heavy."""


@hookspec
def dew_run_started(run: Run, step: int, total_steps: int, unit: str) -> None:
    """The run begins, or resumes at `step` of `total_steps`; rates count `unit`s."""


@hookspec
def dew_metrics_logged(run: Run, values: Mapping[str, float], step: int) -> None:
    """Training metrics of a log tick, keyed `train/name`."""


@hookspec
def dew_evaluation_done(run: Run, values: Mapping[str, float], step: int) -> None:
    """Metrics of one complete validation pass, keyed `validation/name`."""


@hookspec
def dew_checkpoint_committed(run: Run, path: str, step: int) -> None:
    """A checkpoint is durable at `path`."""


@hookspec
def dew_run_finished(run: Run, status: str, step: int) -> None:
    """The run ended: `completed`, `interrupted` or `failed`."""
