"""Stopping in time.

The first SIGINT or SIGTERM asks the run to save and stop, a second Ctrl-C stops at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Preempted(Exception):
    """A run stopped because a signal asked it to.

    Attributes:
        signal: the signal's number.
        step: attempts completed.
        saved: whether a checkpoint of this step is durable.
    """

    def __init__(self, signal_number: int, step: int, *, saved: bool = False) -> None:
        self.signal = signal_number
        self.step = step
        self.saved = saved
        state = (
            "its checkpoint is saved" if saved else "nothing was saved, since the run keeps no checkpoints"
        )
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; {state}")


_requested: list[int] = []


def requested() -> int | None:
    """The signal that asked for a stop, or None."""
    return _requested[0] if _requested else None


def request(signal_number: int = signal.SIGTERM) -> None:
    """Ask the run for a stop, as a signal would."""
    if not _requested:
        _requested.append(signal_number)


@contextmanager
def watch() -> Generator[None]:
    """Turn signals into a request for the length of the block; the former handlers come back after it.

    Outside the main thread, where Python installs no handlers, signals keep their meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        if _requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        request(number)

    _requested.clear()
    for number in former:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _requested.clear()
