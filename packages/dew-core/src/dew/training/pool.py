"""Processes of one run watch over each other, so that one's failure ends them all, and soon.

Each of them gives a sign of life twice a second. The first failure of a run is written on the pool's board; a
process that reads it raises `PoolFailure` at its next step, and ends after a grace where it is stuck in a
collective. Times: a process that raises or exits ends the others within `GRACE_S` and a second; one that was
killed within `DEW_SILENCE_S` more; one whose data never comes within `DEW_PATIENCE_S` more.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager

import jax

from dew.failure import StatedFailure
from dew.training import board, preemption

BEAT_S = 0.5
"""Seconds between two signs of life."""

GRACE_S = 5.0
"""Seconds a process has to end by itself once the pool is lost."""


class PoolFailure(StatedFailure, RuntimeError):
    """Another process of the pool failed; the message names which one and how."""


def silence_s() -> float:
    """Seconds without a sign of life after which a process counts as lost: `DEW_SILENCE_S`, default 30."""
    return _seconds("DEW_SILENCE_S", 30.0)


def patience_s() -> float:
    """Seconds that a process of a pool waits for data: `DEW_PATIENCE_S`, default 600."""
    return _seconds("DEW_PATIENCE_S", 600.0)


@contextmanager
def watched() -> Generator[None]:
    """Share the fate of all processes for the length of the block; each of them enters it.

    Inside another such block, and in a process that is alone, it changes nothing.

    Raises:
        PoolFailure: another process failed first.
    """
    if jax.process_count() == 1 or (_watch is not None and _watch.inside):
        yield
        return
    watch = joined()
    watch.enter()
    try:
        yield
    except preemption.Preempted:  # all have agreed on it
        watch.done()
        raise
    except BaseException as error:
        watch.fail(error)
        raise
    watch.done()


def check() -> None:
    """Raise `PoolFailure` where the pool is lost."""
    if _watch is not None and _watch.cause is not None:
        raise PoolFailure(_watch.cause)


@contextmanager
def waiting(what: str, *, times: float = 1.0) -> Generator[None]:
    """Count the block as a failure of this process once it takes `times` the pool's patience.

    Args:
        what: completes "waited 600 s for".
        times: above 1 for what is another process's to end.
    """
    if _watch is None:
        yield
        return
    _watch.wait = (what, time.monotonic(), times * patience_s())
    try:
        yield
    finally:
        _watch.wait = None


def exchange(what: str, text: str) -> list[str]:
    """The texts that all processes bring to `what`, in their order; every process calls it.

    It waits twice the pool's patience for the others, also where no run is watched.

    Raises:
        PoolFailure: one of them failed instead, or did not come.
    """
    if jax.process_count() == 1:
        return [text]
    limit = 2.0 * patience_s()
    deadline = time.monotonic() + limit

    def look(missing: list[int]) -> None:
        check()
        if not (_watch is not None and _watch.inside) and time.monotonic() > deadline:
            names = ", ".join(map(str, missing))
            raise PoolFailure(
                f"process {jax.process_index()} of {jax.process_count()} failed: it waited {limit:g} s at "
                f"{what} for process {names}"
            )

    with waiting(f"the other processes at {what}", times=2.0):
        return board.exchange(text, meanwhile=look)


def joined() -> Watch:
    """This process's watch, begun where there is none; at exit the others are told that it left."""
    global _watch
    if _watch is None:
        _watch = Watch()
        _watch.begin()
        atexit.register(_watch.leave)
    return _watch


class Watch:
    """The thread that gives signs of life and looks for those of the others.

    Attributes:
        cause: what ended the pool, or None.
        inside: whether a run is under way.
        wait: what the main thread waits for, since when, and for how long it may.
        batches: batches this process has begun to train on, told with every sign of life.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        self.inside = False
        self.wait: tuple[str, float, float] | None = None
        self.batches = 0
        self.scope = 0
        self._index, self._count = jax.process_index(), jax.process_count()
        self._heard: dict[str, tuple[str, float]] = {}
        self._lost_at = 0.0
        self._absent = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dew-pool", daemon=True)

    def begin(self) -> None:
        # Before any work: whoever dies without a word is missed from its first sign of life on.
        self._beat(0)
        self._thread.start()

    def enter(self) -> None:
        """A run begins."""
        self.scope += 1
        self.batches = 0
        self.inside = True

    def done(self) -> None:
        """The run has ended well here."""
        board.post(f"done/{self.scope}/{self._index}", "")
        self.inside = False

    def fail(self, error: BaseException) -> None:
        """The run has ended with `error` here: tell the others, or learn that one of them was first.

        Raises:
            PoolFailure: `error` only follows from another process's failure.
        """
        if isinstance(error, PoolFailure):
            if self.cause is None:
                self._learn(board.post_first(f"failure/{self.scope}", str(error)))
            return
        follows = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error)
        deadline = time.monotonic() + (silence_s() + 4 * BEAT_S if follows else 0.0)
        while self.cause is None and time.monotonic() < deadline:
            time.sleep(BEAT_S / 5)
        if self.cause is None:
            self._error = error
            self._publish(f"{type(error).__name__}: {error}")
        if self._error is error:
            return
        if follows:
            raise PoolFailure(self.cause) from error
        error.add_note(f"before it, {self.cause}")

    def leave(self) -> None:
        """At exit: the others learn of it, and from a lost pool nobody is waited for."""
        self._over.set()
        self._thread.join(4 * BEAT_S)
        if self.cause is not None:
            self._end()
        try:
            board.post(f"left/{self._index}", "")
        except (RuntimeError, jax.errors.JaxRuntimeError):
            return  # it has left before, by jax.distributed.shutdown

    def _run(self) -> None:
        beats = 0
        while not self._over.wait(BEAT_S):
            beats += 1
            try:
                self._beat(beats)
                if self.inside and self.cause is None:
                    self._look()
            except (RuntimeError, jax.errors.JaxRuntimeError) as error:
                if self.inside and self.cause is None:
                    self._learn(
                        f"process 0 of {self._count}, which holds the pool together, is gone ({error})"
                    )
            if self.cause is not None and time.monotonic() > self._lost_at + GRACE_S:
                if self._error is not None:
                    traceback.print_exception(self._error)
                self._end()

    def _beat(self, count: int) -> None:
        board.post(f"beats/{self._index}", f"{count} {self.batches}")

    def _look(self) -> None:
        found = board.read(f"failure/{self.scope}").get("first")
        if found is not None:
            self._learn(found)
        elif self.wait is not None and time.monotonic() > self.wait[1] + self.wait[2]:
            self._publish(f"it waited {self.wait[2]:g} s for {self.wait[0]}")
        elif self._index == 0:
            self._judge()

    def _judge(self) -> None:
        """Process zero's look at the others' signs of life."""
        done, left, now = board.read(f"done/{self.scope}"), board.read("left"), time.monotonic()
        for other, beat in board.read("beats").items():
            if other in done or int(other) == self._index:
                continue
            if other in left:
                self._publish("it has exited", int(other))
            elif self._heard.get(other, ("", 0.0))[0] != beat:
                self._heard[other] = (beat, now)
            elif now > self._heard[other][1] + silence_s():
                self._publish(f"no sign of life for {silence_s():g} s; it was killed or cut off", int(other))

    def _publish(self, how: str, index: int | None = None) -> None:
        which = self._index if index is None else index
        if index is not None:
            self._absent += 1
        self._learn(
            board.post_first(f"failure/{self.scope}", f"process {which} of {self._count} failed: {how}")
        )

    def _learn(self, cause: str) -> None:
        self._lost_at = time.monotonic()
        self.cause = cause
        print(f"dew: {cause}", file=sys.stderr, flush=True)

    def _end(self) -> None:
        """End this process, after the others if it is the one that holds the board."""
        for child in multiprocessing.active_children():
            child.kill()
        try:
            board.post(f"gone/{self._index}", "")
            deadline = time.monotonic() + GRACE_S + 4 * BEAT_S
            others = self._count - self._absent if self._index == 0 else 0
            while len(board.read("gone")) < others and time.monotonic() < deadline:
                time.sleep(BEAT_S / 5)
        except (RuntimeError, jax.errors.JaxRuntimeError):
            pass  # the board is gone, and so nobody waits for an answer
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


_watch: Watch | None = None


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ValueError(f"{name}={text!r} must be a number of seconds above 0")
    return value
