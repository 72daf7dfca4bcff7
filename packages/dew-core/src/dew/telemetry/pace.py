"""How fast a run goes and when it will be done."""

from __future__ import annotations

SMOOTHING = 0.3
"""Weight of the newest stretch in the average time of a step."""


class Pace:
    """Averages the seconds of a step over the log ticks, validation and saving included.

    The stretch before the first tick is left out: it holds the compilation.
    """

    def __init__(self) -> None:
        self.seconds_per_step: float | None = None
        self._last: tuple[int, float] | None = None

    def tick(self, step: int, now: float) -> None:
        """The run reached `step` at `now` seconds."""
        if self._last is not None and step > self._last[0]:
            measured = (now - self._last[1]) / (step - self._last[0])
            old = self.seconds_per_step
            self.seconds_per_step = measured if old is None else old + SMOOTHING * (measured - old)
        self._last = (step, now)

    def left_s(self, total_steps: int, now: float) -> float | None:
        """Seconds to the end, or None before there is something to go by."""
        if self.seconds_per_step is None or self._last is None:
            return None
        step, then = self._last
        return max(0.0, (total_steps - step) * self.seconds_per_step - (now - then))
