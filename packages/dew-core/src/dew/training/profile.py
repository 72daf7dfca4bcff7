"""One profiler trace over a window of a run's steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

from dew.telemetry.config import ProfileWindow
from dew.telemetry.profile import trace_folder


class Profiler:
    """Traces the window's steps, counted from this process's first step. Without a window it does nothing.

    Each traced step carries its number, by which XProf tells the steps apart.

    Args:
        window: the steps.
        apart: entered while the profiler starts and while it writes, which is no training.
    """

    def __init__(
        self, window: ProfileWindow | None, apart: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._window = window
        self._apart = apart
        self._taken = 0
        self._tracing = False
        self._marked: jax.profiler.StepTraceAnnotation | None = None

    def before_step(self) -> None:
        """Start the trace where its first step is next."""
        if self._window is not None and self._taken == self._window.warmup:
            with self._apart():
                jax.profiler.start_trace(trace_folder(self._window.directory))
            self._tracing = True
        if self._tracing:
            self._marked = jax.profiler.StepTraceAnnotation("train", step_num=self._taken)
            self._marked.__enter__()

    def after_step(self, result: Any) -> None:
        """Count the step; stop the trace once the work of its last step is done."""
        self._taken += 1
        last = self._window is not None and self._taken == self._window.warmup + self._window.steps
        if self._tracing and last:
            jax.block_until_ready(result)
        self._unmark()
        if self._tracing and last:
            self.stop()

    def stop(self) -> None:
        """Write the trace, if one is running."""
        self._unmark()
        if self._tracing:
            self._tracing = False
            with self._apart():
                jax.profiler.stop_trace()

    def _unmark(self) -> None:
        marked, self._marked = self._marked, None
        if marked is not None:
            marked.__exit__(None, None, None)
