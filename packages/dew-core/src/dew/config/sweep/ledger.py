"""The ledger of a sweep: one JSON object a line, each durable before the sweep goes on.

A line says that a trial started, with its point, or that it ended, with its value or its first cause of
failure. What a kill tore off at the end is taken off when the ledger is opened.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dew.telemetry.appender import lock, write_all

LEDGER = "ledger.jsonl"


@dataclass
class Trial:
    """One trial as the ledger tells of it.

    Attributes:
        number: from 0.
        point: its values by field.
        status: `started`, `completed` or `failed`.
        value: of the metric, where it completed.
        error: the first cause, where it failed.
        seconds: its processes took.
    """

    number: int
    point: dict[str, Any]
    status: str = "started"
    value: float | None = None
    error: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.status != "started"

    @property
    def name(self) -> str:
        """The name of its run."""
        return f"trial-{self.number:04d}"


class Ledger:
    """The open ledger of the sweep in `directory`, held against a second sweep until it is closed.

    Raises:
        BlockingIOError: another process runs this sweep.
        ValueError: a line inside it is damaged.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / LEDGER
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            hold(self._file, directory)
            os.ftruncate(self._file, whole_bytes(path))
            self.trials = read_ledger(directory)
            os.fsync(self._file)
            sync_folder(directory)
        except BaseException:
            os.close(self._file)
            raise

    def start(self, number: int, point: dict[str, Any]) -> Trial:
        """Put down that a trial starts."""
        self._append({"kind": "started", "trial": number, "point": point})
        self.trials.append(Trial(number, point))
        return self.trials[-1]

    def complete(self, trial: Trial, value: float, seconds: float, facts: dict[str, Any]) -> None:
        """Put down a trial's value."""
        trial.status, trial.value, trial.seconds, trial.facts = "completed", value, seconds, facts
        self._end(trial, value=value, facts=facts)

    def fail(self, trial: Trial, error: str, seconds: float) -> None:
        """Put down why a trial failed."""
        trial.status, trial.error, trial.seconds = "failed", error, seconds
        self._end(trial, error=error)

    def close(self) -> None:
        """Let go of the ledger."""
        os.close(self._file)

    def _end(self, trial: Trial, **fields: Any) -> None:
        seconds = round(trial.seconds, 3)
        self._append({"kind": trial.status, "trial": trial.number, "seconds": seconds, **fields})

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps({**row, "time": round(time.time(), 3)}, separators=(",", ":"), allow_nan=False)
        write_all(self._file, line.encode() + b"\n")
        os.fsync(self._file)


def read_ledger(directory: Path) -> list[Trial]:
    """The trials of the sweep in `directory`, by number; a torn last line is passed over.

    Raises:
        ValueError: a line inside the ledger is damaged.
    """
    path = directory / LEDGER
    trials: dict[int, Trial] = {}
    lines = path.read_bytes()[: whole_bytes(path)].splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            take(trials, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is damaged ({error!r}); restore it, or take the line out to run that "
                "trial again"
            ) from error
    return [trials[number] for number in sorted(trials)]


def take(trials: dict[int, Trial], row: dict[str, Any]) -> None:
    """Add one line of the ledger."""
    number = int(row["trial"])
    if row["kind"] == "started":
        trials[number] = Trial(number, dict(row["point"]))
        return
    trial = trials[number]
    trial.status, trial.seconds = str(row["kind"]), float(row["seconds"])
    trial.value, trial.error = row.get("value"), row.get("error", "")
    trial.facts = dict(row.get("facts", {}))


def whole_bytes(path: Path) -> int:
    """The length of the file's whole lines."""
    held = path.read_bytes() if path.exists() else b""
    return held.rfind(b"\n") + 1


def hold(file: int, directory: Path) -> None:
    """Lock the ledger.

    Raises:
        BlockingIOError: another process has it.
    """
    try:
        lock(file, directory)
    except BlockingIOError:
        raise BlockingIOError(
            f"{directory} is being swept by another process; wait for it, or stop it"
        ) from None


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
