"""A run's journal, read back as the course the run took."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dew.telemetry.appender import is_held
from dew.telemetry.rows import FOLDER, JOURNAL, STARTS, decode_row, decode_values

type Points = dict[int, float]
"""Step -> value, in rising order of the steps."""


@dataclass
class Life:
    """One process's stretch of a run: where it began and how far it got.

    Attributes:
        first_step: the step it began at.
        last_step: the last step it told of.
        started: when it began, seconds since the epoch.
        ended: the time of its last row.
        status: `completed`, `interrupted` or `failed`; None where it left no word.
        command: what was called.
        account: where its time went, as `Tracker.accounted` last told.
    """

    first_step: int
    last_step: int
    started: float
    ended: float
    status: str | None = None
    command: str = ""
    account: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Preview:
    """What the run showed of itself at a step.

    Its items are of kind `text`, with `prompt` and `text`, or `image`, with `file` and `caption`.
    """

    step: int
    items: list[dict[str, str]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint: its path, relative where it lies in the run, and its size when it was written."""

    step: int
    time: float
    path: str
    bytes: int


@dataclass
class RunHistory:
    """The course of a run. What a life logged beyond the step from which the next one went on is dropped.

    Attributes:
        directory: the run directory.
        record: the configuration as last recorded; empty where there is none.
        status: `empty` before the first row, `running`, `completed`, `interrupted` (also a process that died
            without a word) or `failed`.
        total_steps: steps of the whole run; 0 while unknown.
        unit: what rates count.
        metrics: `train/...` series.
        validation: `validation/...` series.
        damaged: lines of the journal that could not be read.
    """

    directory: Path
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    environment: dict[str, Any] = field(default_factory=dict[str, Any])
    status: str = "empty"
    total_steps: int = 0
    unit: str = "samples"
    lives: list[Life] = field(default_factory=list[Life])
    metrics: dict[str, Points] = field(default_factory=dict[str, Points])
    validation: dict[str, Points] = field(default_factory=dict[str, Points])
    previews: list[Preview] = field(default_factory=list[Preview])
    checkpoints: list[Saved] = field(default_factory=list[Saved])
    notices: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    damaged: int = 0

    @property
    def step(self) -> int:
        """The last step the run tells of."""
        return self.lives[-1].last_step if self.lives else 0

    @property
    def updated(self) -> float | None:
        """The time of the last row, seconds since the epoch."""
        return self.lives[-1].ended if self.lives else None

    @property
    def wall_s(self) -> float:
        """Seconds the processes of this run took together."""
        return sum(life.ended - life.started for life in self.lives)

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time of all processes together went, by category of `dew.telemetry.account`."""
        total: dict[str, float] = {}
        for life in self.lives:
            for name, spent in life.account.get("seconds", {}).items():
                total[name] = total.get(name, 0.0) + float(spent)
        return total


def read_journal(directory: str | os.PathLike[str]) -> RunHistory:
    """Read the course of the run in `directory`, which may be running. A torn last line is passed over.

    Raises:
        FileNotFoundError: there is neither a journal nor a `run.json`, so it is no run's folder.
    """
    folder = Path(directory)
    path = folder / FOLDER / JOURNAL
    record = folder / "run.json"
    if not path.exists() and not record.exists():
        raise FileNotFoundError(
            f"{folder} holds neither run.json nor {FOLDER}/{JOURNAL}, so it is not the folder of a run; "
            "dew list shows the runs"
        )
    history = RunHistory(folder)
    if record.exists():
        history.record = record_of(record)
    for row in rows_of(path, history):
        take(history, row)
    history.status = status_of(history, path)
    return history


def record_of(path: Path) -> dict[str, Any]:
    """The configuration a run recorded.

    Raises:
        ValueError: the file holds no JSON object.
    """
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds no JSON object; restore it")
    return cast("dict[str, Any]", record)


def rows_of(path: Path, history: RunHistory) -> Iterator[dict[str, Any]]:
    """The readable rows; what cannot be read is counted, except a last line still being written."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            row = decode_row(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):
                history.damaged += 1


def status_of(history: RunHistory, path: Path) -> str:
    """What became of the run. A process that is gone without a last word was interrupted."""
    if not history.lives:
        return "empty"
    return history.lives[-1].status or ("running" if is_held(path) else "interrupted")


def take(history: RunHistory, row: Mapping[str, Any]) -> None:
    """Add one row to the history. Kinds it does not know are left to newer readers."""
    kind, step = row["kind"], int(row["step"])
    if kind in STARTS:
        begin_life(history, row)
    if not history.lives:
        return
    life = history.lives[-1]
    life.last_step, life.ended = max(life.last_step, step), max(life.ended, float(row["time"]))
    if kind in EVENTS:
        EVENTS[kind](history, row, step)


def begin_life(history: RunHistory, row: Mapping[str, Any]) -> None:
    """Go on from the step of a `run` or `resumed` row: what lies beyond it was lost with its process."""
    step, time = int(row["step"]), float(row["time"])
    for series in (*history.metrics.values(), *history.validation.values()):
        for logged in [logged for logged in series if logged > step]:
            del series[logged]
    history.previews = [each for each in history.previews if each.step <= step]
    history.checkpoints = [each for each in history.checkpoints if each.step <= step]
    history.notices = [each for each in history.notices if each[0] <= step]
    history.record = dict(row["record"]) or history.record
    history.summary, history.environment = dict(row["summary"]), dict(row["environment"])
    history.total_steps, history.unit = int(row["total_steps"]), str(row["unit"])
    history.lives.append(Life(step, step, time, time, command=str(history.environment.get("command", ""))))


def _values(series: dict[str, Points], row: Mapping[str, Any], step: int) -> None:
    for name, value in decode_values(row).items():
        series.setdefault(name, {})[step] = value


def _preview(history: RunHistory, row: Mapping[str, Any], step: int) -> None:
    history.previews = [each for each in history.previews if each.step != step]
    history.previews.append(Preview(step, list(row["items"])))


def _checkpoint(history: RunHistory, row: Mapping[str, Any], step: int) -> None:
    history.checkpoints = [each for each in history.checkpoints if each.step != step]
    history.checkpoints.append(Saved(step, float(row["time"]), str(row["path"]), int(row["bytes"])))


def _account(history: RunHistory, row: Mapping[str, Any], step: int) -> None:
    history.lives[-1].account = dict(row["account"])


def _finished(history: RunHistory, row: Mapping[str, Any], step: int) -> None:
    history.lives[-1].status = str(row["status"])


EVENTS: Mapping[str, Callable[[RunHistory, Mapping[str, Any], int], None]] = {
    "metrics": lambda history, row, step: _values(history.metrics, row, step),
    "validation": lambda history, row, step: _values(history.validation, row, step),
    "preview": _preview,
    "checkpoint": _checkpoint,
    "notice": lambda history, row, step: history.notices.append((step, str(row["message"]))),
    "account": _account,
    "finished": _finished,
}
