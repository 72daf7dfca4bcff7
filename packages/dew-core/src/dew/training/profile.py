"""One profiler trace over a window of a run's steps."""

from __future__ import annotations

from typing import Any

import jax

from dew.telemetry.config import ProfileWindow


class Profiler:
    """Traces the window's steps, counted from this process's first step. Without a window it does nothing."""

    def __init__(self, window: ProfileWindow | None) -> None:
        self._window = window
        self._taken = 0
        self._tracing = False

    def before_step(self) -> None:
        """Start the trace where its first step is next."""
        if self._window is not None and self._taken == self._window.warmup:
            jax.profiler.start_trace(self._window.directory)
            self._tracing = True

    def after_step(self, result: Any) -> None:
        """Count the step; stop the trace once the work of its last step is done."""
        self._taken += 1
        if (
            self._window is not None
            and self._tracing
            and self._taken == self._window.warmup + self._window.steps
        ):
            jax.block_until_ready(result)
            self.stop()

    def stop(self) -> None:
        """Write the trace, if one is running."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
