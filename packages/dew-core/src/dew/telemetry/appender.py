"""Append lines to a file from a thread, so that a slow disk never holds up a training step."""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dew.telemetry.rows import decode_row

SYNC_EVERY_S = 5.0
"""Seconds of rows that a loss of power may cost; the death of the process costs none that was written."""
LOCK_WAIT_S = 1.0
"""Seconds that a lock held by another process is waited for."""
PENDING = 10_000
"""Jobs that may wait for the disk."""
STUCK_AFTER_S = 2.0
"""Seconds that a full queue is waited for, once, before the disk counts as stuck."""


class Appender:
    """One open file and the thread that writes to it, locked against a second writer.

    What the thread cannot do is raised by the next call.

    Args:
        path: created with its folders; a torn last line is taken off.

    Raises:
        BlockingIOError: another process is writing the file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            lock(self._file, path)
            mend_tail(self._file)
        except BaseException:
            os.close(self._file)
            raise
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(PENDING)
        self._error: BaseException | None = None
        self._synced = time.monotonic()
        self._dirty = False
        self._thread = threading.Thread(target=self._work, name="dew-journal", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Have `line` written behind those before it."""
        self.do(lambda: write_all(self._file, line))

    def do(self, job: Callable[[], None]) -> None:
        """Have `job` run between the lines around it, as for a picture that a line names.

        Raises:
            OSError: an earlier job failed, or the disk takes nothing.
        """
        if self._error is not None:
            raise OSError(f"an earlier write failed: {self._error!r}") from self._error
        try:
            self._jobs.put(job, timeout=STUCK_AFTER_S)
        except queue.Full:
            raise OSError(f"{PENDING} writes are waiting for a disk that takes none") from None

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is pending, make it durable and let go of the file.

        Raises:
            OSError: a write failed.
            TimeoutError: the disk did not take it all in time; the thread goes on by itself.
        """
        self._jobs.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the disk did not take the last rows within {timeout_s:g} s")
        if self._error is not None:
            raise OSError(f"a write failed: {self._error!r}") from self._error

    def _work(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._file)

    def _step(self) -> bool:
        due = max(0.0, self._synced + SYNC_EVERY_S - time.monotonic())
        try:
            job = self._jobs.get(timeout=due if self._dirty else None)
        except queue.Empty:
            self._sync()
            return True
        if job is None:
            self._sync()
            return False
        job()
        self._dirty = True
        if due == 0.0:
            self._sync()
        return True

    def _sync(self) -> None:
        if self._dirty:
            os.fsync(self._file)
        self._synced, self._dirty = time.monotonic(), False


def lock(file: int, path: Path) -> None:
    """Hold `file` against other writers until it is closed, where the file system has locks.

    A reader that asks whether the file is held (`is_held`) holds it for an instant, so a second is waited.

    Raises:
        BlockingIOError: another process holds it.
    """
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise BlockingIOError(
                    f"{path} is being written by another process; stop that run, or give this one another "
                    "name"
                ) from None
            time.sleep(0.02)
        except OSError:
            return  # a file system without locks: a reader then goes by the age of the last row


def is_held(path: Path) -> bool:
    """Whether a live process writes `path`."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def mend_tail(file: int) -> None:
    """End `file` with a whole line: one without its line end gets it, a torn one is cut off."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start and b"\n" not in tail:
        length = min(start, 1 << 16)
        start -= length
        tail = os.pread(file, length, start) + tail
    last = tail[tail.rfind(b"\n") + 1 :]
    if not last:
        return
    if decode_row(last) is None:
        os.ftruncate(file, size - len(last))
    else:
        write_all(file, b"\n")


def write_all(file: int, data: bytes) -> None:
    """Write every byte of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
