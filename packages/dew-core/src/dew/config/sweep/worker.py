"""The process of one trial: it trains a recorded configuration, and ends with the sweep that started it.

python -m dew.config.sweep.worker RECIPE RECORD ERROR
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path


def main(recipe: str, record: str, error: str) -> int:
    """Train, and leave the first cause of a failure in the file `error`; return the exit status."""
    from dew.cli import errors
    from dew.registry import recipes

    threading.Thread(target=end_with_sweep, name="dew-sweep-watch", daemon=True).start()
    try:
        config = recipes.config(recipe).from_dict(json.loads(Path(record).read_text()))
        recipes.get(recipe)(config)
    except Exception as problem:
        if errors.stopped_by(problem) is None:
            Path(error).write_text(first_cause(problem))
        return errors.report(problem)
    except KeyboardInterrupt:
        return errors.INTERRUPTED
    return errors.SUCCESS


def end_with_sweep() -> None:
    """End this process at once where the sweep is gone: the pipe it holds open at our input then ends."""
    while os.read(0, 1):  # not through `sys.stdin`, whose lock would outlive this thread
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def first_cause(error: BaseException) -> str:
    """Type and message of the error that the others arose from."""
    while (
        before := error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    ) is not None:
        error = before
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
