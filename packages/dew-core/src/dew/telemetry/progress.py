"""The progress display: a live line on a terminal, plain lines in a pipe or a CI log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dew.artifacts import Artifacts
from dew.telemetry.account import STEP, goodput
from dew.telemetry.amounts import duration, number, rate
from dew.telemetry.pace import Pace
from dew.telemetry.plain_text import excerpt
from dew.telemetry.previews import Picture, preview_items
from dew.telemetry.tracker import Tracker

if TYPE_CHECKING:
    from rich.console import Console

    from dew.telemetry.bar import LiveBar

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines about training."""
REFRESHES_PER_S = 4.0
SAMPLES = 2
LINES = 10
"""Samples of a preview, and lines of each, that are shown."""


class ProgressTracker(Tracker):
    """Shows step, loss, rate and time left, and above them the validation results and previews.

    Args:
        name: of the run.
        console: where to; default standard output.
        clock: seconds of a steady clock.
    """

    def __init__(
        self, name: str = "", *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._given = console
        self._clock = clock
        self._bar: LiveBar | None = None
        self._unit = "samples"
        self._total = 0
        self._pace = Pace()
        self._printed: float | None = None
        self._account: Mapping[str, Any] = {}

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        from rich.console import Console

        from dew.telemetry.bar import LiveBar

        self._console = self._given or Console(file=sys.stdout, highlight=False, markup=False)
        self._unit, self._total = unit, total_steps
        self._begun = self._clock()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = LiveBar(self._console, self._clock, self._pace, total_steps, REFRESHES_PER_S)
            self._bar.start(step)
        title = " ".join(filter(None, ["resuming" if step else "training", self._name]))
        # The bar says so itself, for as long as it lasts.
        waiting = "" if self._bar is not None else ", compiling (of a large model, some minutes)"
        self._say(f"{title}: {self._where(step)}{waiting}")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        now = self._clock()
        self._pace.tick(step, now)
        facts = self._facts(values)
        if self._bar is not None:
            self._bar.update(step, facts)
        elif self._printed is None or now - self._printed >= PLAIN_EVERY_S or step == self._total:
            self._printed = now
            left = self._pace.left_s(self._total, now)
            tail = [f"{duration(left)} left"] if left is not None and step < self._total else []
            self._say("  ".join([self._where(step), *facts, *tail]))

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        if not values:
            return
        shown = "  ".join(
            f"{name.partition('/')[2] or name} {number(value)}" for name, value in values.items()
        )
        self._say(f"{self._where(step)}  validation  {shown}", style="bold")

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        items = list(preview_items(artifacts))
        columns = max(20, self._console.width - 4)
        for item in [item for item in items if not isinstance(item, Picture)][:SAMPLES]:
            for line in excerpt(item.prompt + item.text, lines=LINES, columns=columns):
                self._say(f"  | {line}", style="dim")
        pictures = sum(item.count for item in items if isinstance(item, Picture))
        if pictures:
            self._say(f"  {pictures} pictures, shown by dew report", style="dim")

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        self._account = account

    def finished(self, status: str, *, step: int) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        spent = duration(self._clock() - self._begun)
        self._say(f"{status} at {self._where(step)} after {spent}", style="bold")
        if self._account:
            self._say(f"  {shares(self._account['seconds'])}", style="dim")

    def _where(self, step: int) -> str:
        return f"step {step}/{self._total}"

    def _facts(self, values: Mapping[str, float]) -> list[str]:
        facts = [f"loss {number(values['train/loss'])}"] if "train/loss" in values else []
        speed = values.get(f"train/{self._unit}_per_second")
        facts += [] if speed is None else [f"{rate(speed)} {self._unit}/s"]
        use = values.get("performance/mfu")
        return facts if use is None else [*facts, f"mfu {use:.0%}"]

    def _say(self, line: str, style: str = "") -> None:
        """Print a line as it is: above the bar, or unwrapped and without colour where there is none."""
        encoding = self._console.encoding or "utf-8"
        safe = line.encode(encoding, "replace").decode(encoding)
        if self._console.is_terminal:
            from rich.text import Text

            self._console.print(Text(safe, style=style), soft_wrap=self._bar is None)
        else:
            self._console.file.write(safe + "\n")
            self._console.file.flush()


def shares(seconds: Mapping[str, float]) -> str:
    """Goodput, and the other categories that took a hundredth of the time or more, the greatest first."""
    whole = sum(seconds.values()) or 1.0
    others = sorted(((spent, name) for name, spent in seconds.items() if name != STEP), reverse=True)
    listed = ", ".join(f"{name} {spent / whole:.0%}" for spent, name in others if spent >= 0.01 * whole)
    return f"goodput {goodput(seconds):.0%}" + (f" ({listed})" if listed else "")
