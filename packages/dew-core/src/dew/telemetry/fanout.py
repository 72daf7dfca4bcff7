"""Several trackers behind one: a tracker that fails is reported once and left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dew.artifacts import Artifacts
from dew.telemetry.journal import JournalTracker
from dew.telemetry.tracker import Tracker

LOGGER = logging.getLogger("dew.telemetry")


class FanOut(Tracker):
    """Tells each tracker every event, in order.

    One that raises is named in the log and in the journal, and hears nothing more; the others go on.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        self._tell(lambda each: each.started(step=step, total_steps=total_steps, unit=unit), step)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._tell(lambda each: each.log(values, step=step), step)

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        self._tell(lambda each: each.evaluated(values, step=step), step)

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        self._tell(lambda each: each.preview(artifacts, step=step), step)

    def checkpointed(self, path: str, *, step: int) -> None:
        self._tell(lambda each: each.checkpointed(path, step=step), step)

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        self._tell(lambda each: each.accounted(account, step=step), step)

    def finished(self, status: str, *, step: int) -> None:
        """End the journal last, so that it holds what the others did wrong at the end."""
        self.trackers.sort(key=lambda each: isinstance(each, JournalTracker))
        self._tell(lambda each: each.finished(status, step=step), step)

    def _tell(self, event: Callable[[Tracker], None], step: int) -> None:
        for tracker in list(self.trackers):
            try:
                event(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                self._report(f"{type(tracker).__name__} is left out from step {step} on: {error!r}", step)

    def _report(self, message: str, step: int) -> None:
        LOGGER.warning("%s", message)
        for tracker in [each for each in self.trackers if isinstance(each, JournalTracker)]:
            try:
                tracker.notice(message, step=step)
            except Exception as error:
                self.trackers.remove(tracker)
                LOGGER.warning("JournalTracker is left out from step %d on: %r", step, error)
