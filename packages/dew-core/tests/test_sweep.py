"""A sweep: what it refuses before the first trial, what it repeats and what not, and which trial is best."""

import dataclasses
import json
import re
import signal
import sys

import pytest

from dew.cli import main
from dew.config.sweep import Choice, Range, Sweep
from dew.config.sweep.driver import best
from dew.config.sweep.ledger import read_ledger
from dew.config.sweep.trial import TrialFailed, TrialStopped, reason
from dew.config.sweep.worker import first_cause
from dew.plugins.loader import installed
from dew.telemetry import JournalTracker

PLUGIN = """
from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1

@hookimpl
def dew_components():
    yield Component("dataset", "sweep_lines", "sweep_parts:Lines", "Lines.")
    yield Component("recipe", "toy", "sweep_parts:train", "Train a toy.", config="sweep_parts:ToyConfig")
    yield Component("objective", "toy", "sweep_parts:train", "A toy.", config="sweep_parts:ToyConfig")
"""
PARTS = '''
from __future__ import annotations
from dataclasses import dataclass
from dew.config import RunConfig, TrainerConfig
from dew.data.config import DatasetSpec

@dataclass(frozen=True, kw_only=True)
class Lines(DatasetSpec):
    """Lines."""
    def load(self, *, batch, tokenize=None):
        raise NotImplementedError

@dataclass(frozen=True)
class ToyConfig(RunConfig):
    """Train a toy."""
    depth: int = 3
    rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if self.depth * self.rate > 100:
            raise ValueError(f"depth={self.depth} with rate={self.rate} is too much")

    @classmethod
    def starting_point(cls):
        return cls(data=Lines(), objective="toy", trainer=TrainerConfig(steps=7))

def train(config):
    raise RuntimeError("the toy cannot train")
'''


GRID = {"depth": Choice((1, 9)), "rate": Choice((0.1, 0.7))}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The record of a toy recipe's starting point."""
    (tmp_path / "sweep_plugin.py").write_text(PLUGIN)
    (tmp_path / "sweep_parts.py").write_text(PARTS)
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dew]\ntoy = sweep_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    installed.cache_clear()
    import sweep_parts

    yield json.loads(json.dumps(sweep_parts.ToyConfig.starting_point().to_dict()))
    installed.cache_clear()
    for name in ("sweep_plugin", "sweep_parts"):
        sys.modules.pop(name, None)


def journals(value, *, ran=None, higher=True):
    """A runner that leaves the journal of a finished run; `value` may raise."""

    def run(directory, recipe, record, name):
        if ran is not None:
            ran.append(name)
        measured = {"validation/score": value(record), "validation/other": -float(record["depth"])}
        summary = {"metrics": {"score": higher, "other": False}}
        tracker = JournalTracker(str(directory / "trials" / name), record=record, summary=summary)
        tracker.started(step=0, total_steps=7, unit="rows")
        tracker.evaluated({"validation/score": 0.0}, step=3)
        tracker.evaluated(measured, step=7)
        tracker.finished("completed", step=7)

    return run


def sweep(toy, space, **options):
    return Sweep(recipe="toy", base=toy, space=space, **options)


def test_a_finished_trial_is_not_repeated_and_the_best_follows_the_metrics_direction(toy, tmp_path):
    ran = []
    asked = sweep(toy, {"depth": Choice((1, 5, 2)), "rate": Choice((0.1,))})
    for _ in range(2):
        trials = asked.run(tmp_path / "s", runner=journals(lambda record: float(record["depth"]), ran=ran))
    assert ran == ["trial-0000", "trial-0001", "trial-0002"]
    assert [trial.value for trial in trials] == [1.0, 5.0, 2.0]
    assert best(trials).point == {"depth": 5, "rate": 0.1}
    lower = sweep(toy, {"depth": Choice((1, 5, 2))}, metric="other")
    found = best(lower.run(tmp_path / "other", runner=journals(lambda record: 1.0)))
    assert found.value == -5.0 and found.facts == {"metric": "other", "higher_is_better": False}


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_a_sweep_killed_at_any_trial_ends_like_one_left_alone(toy, tmp_path, method):
    space = {"depth": Range(1, 60), "rate": Range(1e-3, 1.0, log=True)}
    asked = sweep(toy, space, method=method, trials=4, seed=3) if method != "grid" else sweep(toy, GRID)

    def value(record):
        return record["depth"] * record["rate"]

    alone = asked.run(tmp_path / "alone", runner=journals(value))

    class Killed(BaseException):
        pass

    def dies(record):
        raise Killed

    for number in range(4):
        folder = tmp_path / f"killed{number}"
        lives = iter([journals(value)] * number + [journals(dies)] + [journals(value)] * 4)
        run = {"runner": lambda *words, lives=lives: next(lives)(*words)}
        with pytest.raises(Killed):
            asked.run(folder, **run)
        trials = Sweep.load(folder).run(folder, **run)
        assert [(each.point, each.value) for each in trials] == [(each.point, each.value) for each in alone]


def test_a_failure_is_put_down_with_its_first_cause_and_the_sweep_goes_on(toy, tmp_path):
    def value(record):
        if record["depth"] == 2:
            raise TrialFailed("ValueError: no such thing")
        return 1.0

    trials = sweep(toy, {"depth": Choice((1, 2, 3))}).run(tmp_path / "s", runner=journals(value))
    assert [trial.status for trial in trials] == ["completed", "failed", "completed"]
    assert read_ledger(tmp_path / "s")[1].error == "ValueError: no such thing"
    missing = sweep(toy, {"depth": Choice((1, 2))}, metric="bleu")
    with pytest.raises(ValueError, match="metric='bleu' is none of the run's; it has score, other, loss"):
        missing.run(tmp_path / "m", runner=journals(lambda record: 1.0))
    other = Sweep.load(tmp_path / "m")
    trials = dataclasses.replace(other, metric="score").run(
        tmp_path / "m", runner=journals(lambda record: record["depth"])
    )
    assert [trial.value for trial in trials] == [1, 2]
    with pytest.raises(ValueError, match="compared by metric='score' already"):
        dataclasses.replace(other, metric="other").run(tmp_path / "m", runner=journals(lambda record: 1.0))
    (spelled,) = sweep(toy, {"depth": Choice((1,))}, metric="validation/score").run(
        tmp_path / "v", runner=journals(lambda record: 1.0)
    )
    assert (spelled.value, spelled.facts["metric"]) == (1.0, "score")
    (infinite,) = sweep(toy, {"depth": Choice((1,))}).run(
        tmp_path / "i", runner=journals(lambda record: 1e999)
    )
    assert infinite.error == "score ended at inf"


def test_a_trial_of_its_own_process_fails_with_the_recipes_own_words(toy, tmp_path):
    (trial,) = sweep(toy, {"depth": Choice((1,))}).run(tmp_path / "s")
    assert trial.error == "RuntimeError: the toy cannot train"


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"dept": Choice((1,))}, "dept: unknown field; did you mean depth"),
        ({"depth": Choice((1, "two"))}, "depth='two' must be an integer"),
        (
            {"rate": Choice((0.5,)), "depth.of": Choice((1,))},
            "depth holds no fields here; the configuration has model, data",
        ),
        ({"lora.rank": Choice((1, 2))}, r"lora is None, so it has no fields to vary; .* lora:NAME"),
        ({"trainer.name": Choice(("a",))}, "a sweep sets trainer.name itself"),
        ({"depth": Choice((60,)), "rate": Choice((2.0,))}, "depth=60 with rate=2.0 is too much"),
        ({}, "space is empty"),
    ],
)
def test_a_space_that_does_not_fit_is_refused_before_the_first_trial(toy, space, message):
    with pytest.raises(ValueError, match=message):
        sweep(toy, space)


def test_a_folder_of_another_sweep_is_refused(toy, tmp_path):
    sweep(toy, {"depth": Choice((1,))}).run(tmp_path / "s", runner=journals(lambda record: 1.0))
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(toy, {"depth": Choice((2,))}).run(tmp_path / "s", runner=journals(lambda record: 1.0))


def test_a_stopped_trial_stops_the_sweep_and_is_no_failure(toy, tmp_path):
    def stopped(directory, recipe, record, name):
        raise TrialStopped(128 + signal.SIGTERM)

    with pytest.raises(TrialStopped):
        sweep(toy, {"depth": Choice((1,))}).run(tmp_path / "s", runner=stopped)
    assert not read_ledger(tmp_path / "s")[0].done


def test_the_first_cause_is_the_error_that_the_others_arose_from(tmp_path):
    try:
        try:
            raise KeyError("deep")
        except KeyError as error:
            raise ValueError("above") from error
    except ValueError as error:
        assert first_cause(error) == "KeyError: 'deep'"
    (tmp_path / "log").write_text("one\ntwo\n")
    assert reason(-9, tmp_path / "none", tmp_path / "log") == "ended by SIGKILL"
    assert reason(3, tmp_path / "none", tmp_path / "log") == "exit status 3: one / two"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "--space", "depth=1"], "needs a recipe"),
        (["sweep", "toys", "--space", "depth=1"], "'toys' is no recipe; did you mean toy"),
        (["sweep", "toy"], "space is empty"),
        (["sweep", "toy", "--space", "depth=1", "depth=2"], "names depth twice"),
        (["sweep", "toy", "--space", "depth=1", "--trainer.name", "mine"], "trials have names"),
        (["sweep", "--resume", "nowhere"], "holds no sweep.json"),
        (["sweep", "toy", "--resume", "nowhere", "--trials", "3"], "leave out toy --trials"),
        (["sweep", "--resume", "x", "--trainer.steps", "5"], "leave out --trainer.steps\n"),
        (["sweep", "--resume", "x", "--method", "random", "--seed", "0"], "leave out --method --seed"),
    ],
)
def test_the_command_refuses_what_makes_no_sweep(toy, words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_the_report_of_a_sweep_shows_every_trial_and_the_best(toy, tmp_path, capsys):
    def value(record):
        if record["depth"] == 4:
            raise TrialFailed("ValueError: <b>broken</b>")
        return record["depth"] * record["rate"]

    space = {"depth": Choice((2, 4, 8)), "rate": Choice((0.01, 0.5))}
    sweep(toy, space).run(tmp_path / "s", runner=journals(value))
    assert main(["report", str(tmp_path / "s")]) == 0
    page = (tmp_path / "s" / "report.html").read_text()
    text = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.S)
    for figure in (
        "best score",
        "higher is better",
        "6 of 6 trials, grid; 2 failed",
        "score by rate",
        "trial-0005",
    ):
        assert figure in text, figure
    assert page.count('class="dots"') == 3 and 'class="points"' not in page, "trials are no line"
    assert "<b>broken" not in page and page.count("&lt;b&gt;broken") == 2
    assert text.index("trial-0005 8 0.5 4".replace(" ", "  ")) < text.index("trial-0001  2  0.5  1")
