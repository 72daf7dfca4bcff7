"""The sweep itself: its record, its trials one after another, and its result."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dew.config.sweep.ledger import LEDGER, Ledger, Trial, sync_folder
from dew.config.sweep.points import check_space, config_at, described
from dew.config.sweep.space import Dimension, Point, space_from, space_record
from dew.config.sweep.suggest import check_method, suggested
from dew.config.sweep.trial import TRIALS, TrialFailed, TrialStopped, result, run_trial, spent

if TYPE_CHECKING:
    from dew.config.run import RunConfig

SWEEP = "sweep.json"

type Runner = Callable[[Path, str, Mapping[str, Any], str], None]
"""Trains a record: sweep's folder, recipe, record, name of the run. Raises `TrialFailed` where it cannot."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Trials of one recipe over a space of its fields.

    Attributes:
        recipe: its registered name.
        base: the record that every trial starts from, as `RunConfig.to_dict` gives it.
        space: field to what it may be.
        method: `grid`, `random` or `optuna`.
        trials: how many; None for the grid, which runs every combination.
        seed: of the draws of `random` and `optuna`. The runs keep the base's own seed.
        metric: what is compared; None takes the recipe's first validation metric.

    Raises:
        ValueError: a space that does not fit the recipe, by the name of the field: before any trial.
        ImportError: `optuna` is not installed.
    """

    recipe: str
    base: Mapping[str, Any]
    space: Mapping[str, Dimension]
    method: str = "grid"
    trials: int | None = None
    seed: int = 0
    metric: str | None = None

    def __post_init__(self) -> None:
        if not self.space:
            raise ValueError("space is empty; name a field at least")
        count = check_method(self.method, self.trials, self.space)
        check_space(self.config_class, self.base, self.space)
        if self.method != "optuna":
            for number in range(count):
                self.config(self.point(number, [], higher=False))

    @property
    def config_class(self) -> type[RunConfig]:
        """The recipe's configuration."""
        from dew.registry import recipes

        return recipes.config(self.recipe)

    @property
    def count(self) -> int:
        """How many trials the sweep has."""
        return check_method(self.method, self.trials, self.space)

    def point(self, number: int, done: list[Trial], *, higher: bool) -> Point:
        """The point of trial `number` after the trials `done`."""
        return suggested(self.method, self.space, seed=self.seed, number=number, done=done, higher=higher)

    def config(self, point: Point) -> RunConfig:
        """The configuration at a point, but for the place of its run.

        Raises:
            ValueError: values that do not fit each other.
        """
        return config_at(self.config_class, self.base, point)

    def run(
        self,
        directory: str | os.PathLike[str],
        *,
        runner: Runner = run_trial,
        say: Callable[[str], None] = print,
    ) -> list[Trial]:
        """Run what is left of the sweep in `directory` and return all its trials.

        A finished trial is not repeated, a failed one neither. One that was cut off goes on from its last
        checkpoint. A failure is put down with its first cause, and the sweep goes on.

        Raises:
            BlockingIOError: another process runs this sweep.
            ValueError: the folder holds another sweep, or no run has the metric; a sweep without a completed
                trial may go on with another metric.
            TrialStopped: a signal asked for a stop.
        """
        folder = Path(directory)
        ledger = Ledger(folder)
        try:
            self._record(folder, ledger.trials)
            for number in range(self.count):
                self._trial(folder, ledger, number, runner, say)
        finally:
            ledger.close()
        return ledger.trials

    def _trial(
        self, folder: Path, ledger: Ledger, number: int, runner: Runner, say: Callable[[str], None]
    ) -> None:
        known = {trial.number: trial for trial in ledger.trials}
        trial = known.get(number)
        if trial is not None and trial.done:
            return
        if trial is None:
            done = [each for each in ledger.trials if each.done]
            trial = ledger.start(number, self.point(number, done, higher=higher_of(done)))
        say(f"trial {number + 1}/{self.count}: {described(trial.point)}")
        begun = time.monotonic()
        try:
            record = self._trial_record(folder, trial)
            with terminable():
                runner(folder, self.recipe, record, trial.name)
            value, metric, higher = result(folder, trial.name, self.metric)
        except TrialFailed as failure:
            ledger.fail(trial, str(failure), spent(folder, trial.name, time.monotonic() - begun))
            say(f"  failed: {trial.error}")
            return
        facts = {"metric": metric, "higher_is_better": higher}
        ledger.complete(trial, value, spent(folder, trial.name, time.monotonic() - begun), facts)
        say(f"  {metric} {value:.6g}")

    def _trial_record(self, folder: Path, trial: Trial) -> dict[str, Any]:
        try:
            record = self.config(trial.point).to_dict()
        except ValueError as error:
            raise TrialFailed(str(error)) from error
        trainer: Any = record["trainer"]
        return {**record, "trainer": {**trainer, "name": trial.name, "checkpoint_dir": str(folder / TRIALS)}}

    def to_dict(self) -> dict[str, Any]:
        """The sweep as JSON."""
        return {
            "recipe": self.recipe,
            "base": dict(self.base),
            "space": space_record(self.space),
            "method": self.method,
            "trials": self.trials,
            "seed": self.seed,
            "metric": self.metric,
        }

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """The sweep in `directory`.

        Raises:
            FileNotFoundError: there is none.
            ValueError: its record is damaged.
        """
        path = Path(directory) / SWEEP
        if not path.is_file():
            raise FileNotFoundError(f"{directory} holds no {SWEEP}, so it is not the folder of a sweep")
        try:
            record = json.loads(path.read_text())
            fields: dict[str, Any] = {**record, "space": space_from(record["space"])}
            return cls(**fields)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); restore it") from error

    def _record(self, folder: Path, trials: list[Trial]) -> None:
        """Write the record, or compare with the one that is there. The metric may change until it is used."""
        path, record = folder / SWEEP, json.loads(json.dumps(self.to_dict()))
        if path.exists():
            held = json.loads(path.read_text())
            if held == record:
                return
            if {**held, "metric": self.metric} != record:
                raise ValueError(f"{folder} holds another sweep; choose another folder for this one")
            if any(trial.value is not None for trial in trials):
                raise ValueError(
                    f"trials of {folder} are compared by metric={held['metric']!r} already; leave metric as "
                    "it is, or choose another folder"
                )
        partial = folder / f".{SWEEP}.{os.getpid()}"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(record, file, indent=2, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(folder)


def is_sweep(directory: str | os.PathLike[str]) -> bool:
    """Whether `directory` is the folder of a sweep."""
    return (Path(directory) / SWEEP).is_file() and (Path(directory) / LEDGER).is_file()


def higher_of(trials: list[Trial]) -> bool:
    """The direction that the trials' metric has."""
    return any(trial.facts.get("higher_is_better", False) for trial in trials)


def best(trials: list[Trial]) -> Trial | None:
    """The completed trial with the best value, the first of equals; None where none completed."""
    completed = [trial for trial in trials if trial.value is not None]
    sign = -1 if higher_of(completed) else 1
    return min(completed, key=lambda trial: sign * float(trial.value or 0.0), default=None)


@contextmanager
def terminable() -> Generator[None]:
    """Turn SIGTERM into an exception within the block, so that a trial is stopped and waited for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        raise TrialStopped(128 + number)

    former = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
