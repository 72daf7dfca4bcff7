"""Run one trial in a process of its own and read what it came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TRIALS = "trials"
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
LINES = 5
"""Last lines of a trial's output that stand for a cause where it left none."""


class TrialFailed(Exception):
    """A trial ended without a result; the message is the first cause."""


class TrialStopped(Exception):
    """A trial saved and stopped because a signal asked for it.

    Attributes:
        status: the exit status, 128 and the signal's number.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"stopped by {signal.Signals(status - 128).name}")


def run_trial(directory: Path, recipe: str, record: Mapping[str, Any], name: str) -> None:
    """Train `record` as the run `name`; its output goes to `NAME.log` beside the run.

    A run that was cut off goes on from its last checkpoint, or from its start where it had none.

    Raises:
        TrialFailed: with the first cause.
        TrialStopped: Ctrl-C or SIGTERM reached it.
    """
    folder = directory / TRIALS
    folder.mkdir(parents=True, exist_ok=True)
    wanted, cause = folder / f"{name}.json", folder / f"{name}.error"
    wanted.write_text(json.dumps(record))
    cause.unlink(missing_ok=True)
    words = [sys.executable, "-m", "dew.config.sweep.worker", recipe, str(wanted), str(cause)]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = process.wait()
        except BaseException:
            status = stop(process)
            if status in STOPPED:
                raise TrialStopped(status) from None
            raise
    if status in STOPPED:
        raise TrialStopped(status)
    if status:
        raise TrialFailed(reason(status, cause, folder / f"{name}.log"))


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask a trial to save and stop, and wait for it; a second interruption ends it at once."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise


def reason(status: int, cause: Path, log: Path) -> str:
    """What a failed trial said first, or what is known of its end."""
    if cause.exists():
        return cause.read_text()
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        tail = file.read().decode(errors="replace").strip().splitlines()[-LINES:]
    return f"exit status {status}: {' / '.join(tail)}"


def spent(directory: Path, name: str, elapsed: float) -> float:
    """Seconds of all the processes of a trial, by its journal; at least the `elapsed` ones of the last."""
    from dew.telemetry.history import read_journal

    try:
        return max(elapsed, sum(read_journal(directory / TRIALS / name).seconds.values()))
    except (FileNotFoundError, ValueError):
        return elapsed


def result(directory: Path, name: str, metric: str | None) -> tuple[float, str, bool]:
    """The last value of `metric` in a finished trial's journal, the metric's name, and its direction.

    Args:
        directory: of the sweep.
        name: of the trial.
        metric: a validation metric of the run, or `loss` of its training; None takes the first metric.

    Raises:
        ValueError: the recipe has no such metric, so that no other trial would either.
        TrialFailed: this run did not measure it.
    """
    import math

    from dew.telemetry.history import read_journal

    history = read_journal(directory / TRIALS / name)
    directions: dict[str, bool] = dict(history.summary.get("metrics", {}))
    scored = [each for each in directions if f"validation/{each}" in history.validation]
    chosen = next(iter(scored), "loss") if metric is None else metric.removeprefix("validation/")
    if chosen not in directions and chosen != "loss":
        raise ValueError(
            f"metric={metric!r} is none of the run's; it has {', '.join([*directions, 'loss'])}: go on "
            f"with dew sweep --resume {directory} --metric and one of these"
        )
    higher = directions.get(chosen, False)
    known = history.validation.get(f"validation/{chosen}")
    if known is None and chosen == "loss":
        known = history.metrics.get("train/loss")
    if not known:
        measured = ", ".join([*directions, "loss"])
        raise TrialFailed(f"the run measured no {chosen!r}; it has {measured}: name one with --metric")
    value = list(known.values())[-1]
    if not math.isfinite(value):
        raise TrialFailed(f"{chosen} ended at {value}")
    return value, chosen, higher
