"""The live line at the foot of a terminal, fitted to its width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from dew.telemetry.amounts import duration
from dew.telemetry.pace import Pace

MOST_WIDTH, LEAST_WIDTH = 30, 8
"""Columns of the bar itself: at most, and below which it is left out."""


class LiveBar:
    """Step, bar, facts and time left in one line that redraws itself.

    What does not fit is left out from the right, never wrapped: the facts last, the bar first.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float],
        pace: Pace,
        total_steps: int,
        refreshes_per_s: float,
    ) -> None:
        self._clock = clock
        self._pace = pace
        self._total = max(1, total_steps)
        self._step = 0
        self._facts: Sequence[str] = ()
        self._live = Live(self, console=console, refresh_per_second=refreshes_per_s, transient=True)

    def start(self, step: int) -> None:
        """Show the line; standard output and error print above it from here on."""
        self._step = step
        self._live.start()

    def update(self, step: int, facts: Sequence[str]) -> None:
        """Show a new step with its facts."""
        self._step, self._facts = step, facts

    def stop(self) -> None:
        """Take the line away."""
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.line(options.max_width, ascii_only=options.ascii_only)

    def line(self, width: int, *, ascii_only: bool = False) -> Text:
        """The line in at most `width` columns."""
        left = self._pace.left_s(self._total, self._clock())
        waiting = [] if self._facts else ["compiling"]
        ends = [f"{duration(left)} left"] if left is not None else waiting
        pieces = [f"{self._step}/{self._total}", *self._facts, *ends]
        while len(pieces) > 1 and len("  ".join(pieces)) > width:
            pieces.pop()
        room = min(MOST_WIDTH, width - len("  ".join(pieces)) - 2)
        text = Text(pieces[0], no_wrap=True, overflow="crop", end="")
        if room >= LEAST_WIDTH:
            text.append("  ")
            text.append_text(self._bar(room, ascii_only=ascii_only))
        for piece in pieces[1:]:
            text.append("  " + piece)
        text.truncate(width)
        return text

    def _bar(self, columns: int, *, ascii_only: bool) -> Text:
        done = min(columns, columns * self._step // self._total)
        full, empty = ("#", "-") if ascii_only else ("━", "━")
        return Text.assemble((full * done, "green"), (empty * (columns - done), "bright_black"))
