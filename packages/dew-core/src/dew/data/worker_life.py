"""A loader's worker ends with the process that it reads for, also where that is killed without a word."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent(index: int, count: int) -> None:
    """End this process as soon as its parent is gone. A worker calls it once, when it starts.

    Without it the worker waits for room in a queue that nobody reads any more, for ever.

    Args:
        index: of the worker, as Grain says; not used.
        count: of all workers; not used.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="dew-parent-watch", daemon=True).start()
