"""Read-ahead: a worker thread that iterates a host source and places its batches on the mesh."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from jax.sharding import Mesh

from dew.data.dataset import BatchIterator


@dataclass(frozen=True)
class _Placed:
    batch: Any
    state: bytes | None


@dataclass(frozen=True)
class _Ended:
    error: BaseException | None


class DevicePrefetchIterator:
    """Batches of a source as global arrays, placed up to `depth` ahead of the consumer by one worker thread.

    The iterator owns the source from construction on. The worker starts with the first `next()` and does all
    that touches the source: restoring a saved position, iterating, reading positions and the final close. At
    most `depth` placed batches wait in the queue and one more is in flight. The end of the source, or its
    failure, arrives after the batches before it. Close it in every case: with a `with` block or `close()`.

    Args:
        iterator: the host source; exclusively owned from here on.
        mesh: where batches are placed.
        depth: placed batches that may wait.
        source_state: a saved position to continue from.

    Attributes:
        source_state: the source's position after the last batch delivered; before the first, the position
            given.

    Raises:
        ValueError: a depth below 1.
    """

    def __init__(
        self, iterator: BatchIterator, mesh: Mesh, depth: int = 2, source_state: bytes | None = None
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1")
        self.source_state = source_state
        self._worker = _Worker(iterator, mesh, depth, source_state)
        self._finished = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._finished:
            raise StopIteration
        item = self._worker.take()
        if isinstance(item, _Placed):
            self.source_state = item.state
            return item.batch
        self._finished = True
        if item.error is not None:
            raise item.error
        raise StopIteration

    def ready(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; whether `next` would return or raise at once."""
        return self._finished or self._worker.ready(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Cancel reading, drop what is queued and wait for the worker, which closes the source.

        Unread batches and failures of speculative reading are dropped; a failure of the source's own `close`
        is raised, once.

        Args:
            timeout: seconds to wait.

        Raises:
            TimeoutError: the source's read, the placement or its close did not come back in time. The
                thread is still there and cancellation stays requested; `close` can be called again.
        """
        self._finished = True
        self._worker.stop(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:
            error.add_note(f"closing the read-ahead failed too: {failure!r}")


class _Worker:
    """The queue between the consumer and the thread, and the thread itself."""

    def __init__(self, source: BatchIterator, mesh: Mesh, depth: int, state: bytes | None) -> None:
        self._source: BatchIterator | None = source
        self._mesh = mesh
        self._depth = depth
        self._state = state
        self._queue: deque[_Placed | _Ended] = deque()
        self._changed = threading.Condition()
        self._cancelled = False
        self._close_error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> _Placed | _Ended:
        """The next item, starting the thread on the first call."""
        self._start(self._run)
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._cancelled)
            if not self._queue:
                return _Ended(None)
            item = self._queue.popleft()
            self._changed.notify_all()
            return item if isinstance(item, _Placed) else self._with_close_error(item)

    def ready(self, timeout: float) -> bool:
        """Whether `take` need not wait, after at most `timeout` seconds; starts the thread."""
        self._start(self._run)
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._queue) or self._cancelled, timeout)

    def stop(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            self._cancelled = True
            self._queue.clear()
            self._changed.notify_all()
            request_stop = getattr(self._source, "request_stop", None)
        if request_stop is not None:
            request_stop()
        self._start(self._finalize)
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                raise TimeoutError(
                    f"the data source did not stop within {timeout:g} s: a read, a placement or its close "
                    "is still running in its thread; close() can be called again"
                )
        error = self._with_close_error(_Ended(None)).error
        if error is not None:
            raise error

    def _with_close_error(self, ended: _Ended) -> _Ended:
        """`ended` together with the failure of the source's close, which is then reported and forgotten."""
        failure, self._close_error = self._close_error, None
        if failure is None or ended.error is None:
            return _Ended(ended.error or failure)
        ended.error.add_note(f"closing the data source failed too: {failure!r}")
        return ended

    def _start(self, target: Callable[[], None]) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=target, name="dew-prefetch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._read()
        except BaseException as failure:
            error = failure
        self._finalize()
        self._put(_Ended(error))

    def _read(self) -> None:
        from dew.training.distributed import shard_batch

        source = self._source
        assert source is not None
        if self._state is not None:
            source.set_state(self._state)
        get_state: Callable[[], bytes] | None = getattr(source, "get_state", None)
        while not self._cancelled:
            try:
                batch = next(source)
            except StopIteration:
                return
            state = None if get_state is None else get_state()
            self._put_within_depth(_Placed(shard_batch(batch, self._mesh), state))

    def _put_within_depth(self, item: _Placed) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or len(self._queue) < self._depth)
            self._put(item)

    def _put(self, item: _Placed | _Ended) -> None:
        with self._changed:
            if not self._cancelled:
                self._queue.append(item)
            self._changed.notify_all()

    def _finalize(self) -> None:
        source = self._source
        assert source is not None
        try:
            source.close()
        except BaseException as failure:
            self._close_error = failure
        self._source = None
