"""How fast a run consumes its data, in the objective's unit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dew.data.dataset import BatchIterator, HostBatch


class CountedSource:
    """A source whose batches are counted, in the units of the run, while they are still on the host.

    It owns the source it wraps. A source without `get_state` has the position None.
    """

    def __init__(self, source: BatchIterator, count: Callable[[HostBatch], int]) -> None:
        self._source: Any = source
        self._count = count
        self.counts: deque[int] = deque()

    def __iter__(self) -> CountedSource:
        return self

    def __next__(self) -> HostBatch:
        batch = next(self._source)
        self.counts.append(self._count(batch))
        return batch

    def get_state(self) -> Any:
        """The source's position, or None."""
        return self._source.get_state() if hasattr(self._source, "get_state") else None

    def set_state(self, state: bytes) -> None:
        """Continue from a position the source reported."""
        self._source.set_state(state)

    def request_stop(self) -> None:
        """Pass on the request to interrupt a blocked read."""
        if hasattr(self._source, "request_stop"):
            self._source.request_stop()

    def close(self) -> None:
        """Close the source."""
        if hasattr(self._source, "close"):
            self._source.close()


@dataclass(frozen=True)
class Reading:
    """What was counted between two readings of a `Meter`, evaluation and saving taken out.

    Attributes:
        seconds: of the stretch, above 0.
        steps, units, rows: how many of each.
        flops: model FLOPs, or None where a step's are not known.
    """

    seconds: float
    steps: int
    units: int
    rows: int
    flops: float | None


class Meter:
    """What the steps since the last reading came to, with evaluation and saving taken out.

    The first step, which compiles, is left out too: the clock starts when it is done.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._empty()

    def _empty(self) -> None:
        self._steps = self._units = self._rows = 0
        self._flops: float | None = 0.0

    @property
    def running(self) -> bool:
        """Whether the clock has started."""
        return self._since is not None

    def start(self) -> None:
        """Begin counting from here."""
        self._since = self._clock()

    def add(self, *, units: int, rows: int, flops: float | None) -> None:
        """Count one step."""
        if self._since is None:
            return
        self._steps, self._units, self._rows = self._steps + 1, self._units + units, self._rows + rows
        self._flops = None if self._flops is None or flops is None else self._flops + flops

    def reading(self) -> Reading | None:
        """The stretch since the last reading, or None where nothing was counted."""
        now = self._clock()
        if self._since is None or not self._steps or now <= self._since:
            return None
        read = Reading(now - self._since, self._steps, self._units, self._rows, self._flops)
        self._since = now
        self._empty()
        return read

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the time of the block out."""
        begun = self._clock()
        try:
            yield
        finally:
            if self._since is not None:
                self._since += self._clock() - begun
