"""Where a process's wall time goes: every second in one category, so that the shares sum to 1."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

START, RESTORE, COMPILE, DATA = "start", "restore", "compile", "data"
STEP, REDONE, EVALUATION, SAVE, PROFILE = "step", "redone", "evaluation", "save", "profile"

CATEGORIES: Mapping[str, str] = {
    STEP: "training steps that took the run forward",
    START: "imports, data and state before the first step",
    RESTORE: "reading the checkpoint",
    COMPILE: "tracing and compiling, wherever it happens",
    DATA: "waiting for the training data",
    EVALUATION: "validation passes and previews",
    SAVE: "steps held up by a checkpoint",
    PROFILE: "starting the profiler and writing its trace",
    REDONE: "steps that a killed process of this run had done before",
}
"""Category -> what belongs to it. Goodput is the share of `step`."""


class TimeAccount:
    """Books the wall time since `since`; one category is open at any moment.

    Args:
        since: the moment of `clock` the account begins at.
        clock: seconds of a steady clock.

    Attributes:
        first_step_s: seconds from the beginning to the end of the first step, once it is done.
    """

    def __init__(self, since: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock() if since is None else since
        self.first_step_s: float | None = None
        self._seconds = dict.fromkeys(CATEGORIES, 0.0)
        self._open = START
        self._mark = self.began
        self._counted: list[tuple[float, float]] = []

    def turn(self, category: str) -> None:
        """Book to `category` from here on."""
        self._settle()
        self._open = category

    @contextmanager
    def spent(self, category: str) -> Generator[None]:
        """Book the block to `category`, and what follows to what was open before."""
        before = self._open
        self.turn(category)
        try:
            yield
        finally:
            self.turn(before)

    def compiled(self, seconds: float) -> None:
        """Move the last `seconds` from what is open to `compile`.

        Phases nest: the tracing of a function contains that of the functions it calls, and ends later. What
        an inner one has moved already is not moved again.
        """
        self._settle()
        start, inner = self._mark - seconds, 0.0
        while self._counted and self._counted[-1][0] >= start:
            inner += self._counted.pop()[1]
        self._counted.append((start, max(seconds, inner)))
        moved = min(max(0.0, seconds - inner), self._seconds[self._open])
        if self._open != COMPILE:
            self._seconds[self._open] -= moved
            self._seconds[COMPILE] += moved

    def first_step(self) -> None:
        """Note that the first step is done."""
        self.first_step_s = self._clock() - self.began

    def seconds(self) -> dict[str, float]:
        """The seconds of every category up to now; their sum is the time since the beginning."""
        self._settle()
        return dict(self._seconds)

    def goodput(self) -> float:
        """The share of the time spent in steps that took the run forward."""
        return goodput(self.seconds())

    def _settle(self) -> None:
        now = self._clock()
        self._seconds[self._open] += now - self._mark
        self._mark = now


def goodput(seconds: Mapping[str, float]) -> float:
    """The share of `step` in an account's seconds, 0 of none."""
    whole = sum(seconds.values())
    return seconds.get(STEP, 0.0) / whole if whole > 0 else 0.0


def process_start() -> float:
    """When this process began, in seconds of `time.monotonic`.

    Linux says it to 1/100 s. Elsewhere it is the moment this module was imported.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            # The second field, the program's name, may hold spaces and ends with the last parenthesis.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):
        return _IMPORTED
    return time.monotonic() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


_IMPORTED = time.monotonic()
_claimed: list[bool] = []


def claimed_start() -> float:
    """Where the account of a process's run begins: for its first run at the process's start, else now."""
    if _claimed:
        return time.monotonic()
    _claimed.append(True)
    return process_start()
