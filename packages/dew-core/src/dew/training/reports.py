"""What the fit loop tells the tracker: on process zero, and never at the cost of the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from dew.artifacts import Artifacts
from dew.telemetry.tracker import Tracker


class GuardedTracker(Tracker):
    """Passes events to a tracker on process zero. One that raises is reported once and hears nothing more."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker if jax.process_index() == 0 else None

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        self._tell(lambda tracker: tracker.started(step=step, total_steps=total_steps, unit=unit))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._tell(lambda tracker: tracker.log(values, step=step))

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        self._tell(lambda tracker: tracker.evaluated(values, step=step))

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        self._tell(lambda tracker: tracker.preview(artifacts, step=step))

    def checkpointed(self, path: str, *, step: int) -> None:
        self._tell(lambda tracker: tracker.checkpointed(path, step=step))

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        self._tell(lambda tracker: tracker.accounted(account, step=step))

    def finished(self, status: str, *, step: int) -> None:
        self._tell(lambda tracker: tracker.finished(status, step=step))

    def _tell(self, event: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            event(self._tracker)
        except Exception as error:
            name = type(self._tracker).__name__
            self._tracker = None
            warnings.warn(f"tracker {name} failed and is left out from here on: {error!r}", stacklevel=4)
