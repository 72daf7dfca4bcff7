"""`dew.pipeline` and `dew generate` for the run of any family, here a plugin's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dew
from dew.cli.entry import main
from dew.plugins.loader import installed

PLUGIN = """
from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
CONFIG = "toy_family:ToyConfig"

@hookimpl
def dew_components():
    for name in ("toy", "toy_silent", "toy_shut"):
        yield Component("objective", name, "toy_family:ToyConfig", "A toy.", config=CONFIG)
    yield Component("task", "toy", "toy_family:ToyTask", "Write toys.", config="toy_family:ToyOptions")
    yield Component("task", "toy_silent", "toy_family:ToyTask", "Has no options.")
"""
FAMILY = '''
from __future__ import annotations
from dataclasses import dataclass, field
from typing import ClassVar

class ToyConfig:
    """What a run of a toy recorded."""
    paint = "blue"

    @classmethod
    def load(cls, directory):
        return cls()

    def opened(self, directory):
        return self

@dataclass(frozen=True)
class Brush:
    """A brush.

    Attributes:
        width: How wide.
    """
    width: int = 1

@dataclass(frozen=True)
class ToyOptions:
    """Paint some toys.

    Attributes:
        name: What to paint.
        out: Where to write.
        brush: How.
        paint: The colour.
    """
    name: str
    out: str
    brush: Brush = field(default_factory=Brush)
    paint: str = "white"

    positional: ClassVar[tuple[str, ...]] = ("name",)

    def __post_init__(self):
        if self.brush.width < 1:
            raise ValueError(f"width={self.brush.width} must be at least 1")

    @classmethod
    def of_run(cls, config):
        return cls("", "", paint=config.paint)

    def respond(self, task, *, seed):
        yield f"{self.paint} {self.name} {self.brush.width} -> {self.out} seed {seed}\\n"
        yield f"{sorted(task.opened.items())}\\n"

class ToyTask:
    def __init__(self, opened):
        self.opened = opened

    @classmethod
    def from_run(cls, directory, **options):
        return cls({key: value for key, value in options.items() if value is not None})
'''


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the runs of three toy objectives; only the first has a task with a command line."""
    (tmp_path / "toy_family_plugin.py").write_text(PLUGIN)
    (tmp_path / "toy_family.py").write_text(FAMILY)
    info = tmp_path / "toy_family-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-family\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dew]\ntoy_family = toy_family_plugin\n")
    for name in ("toy", "toy_silent", "toy_shut", "toy_gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(f'{{"objective": "{name}"}}')
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()
    for name in ("toy_family_plugin", "toy_family"):
        sys.modules.pop(name, None)


def test_the_options_of_the_runs_family_are_read_and_answered(family, capsys):
    words = ["--seed", "5", str(family / "toy"), "--width", "3", "bear", "--out", "shelf", "--no-ema"]
    assert main(["generate", *words, "--step", "4"]) == 0
    told = capsys.readouterr().out
    assert told == "blue bear 3 -> shelf seed 5\n[('ema', False), ('step', 4)]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "NAME"),
        (["bear"], "--out"),
        (["bear", "--out", "shelf", "--width", "0"], "width=0 must be at least 1"),
        (["bear", "--out", "shelf", "--colour", "red"], "--colour"),
    ],
)
def test_what_only_the_user_knows_must_be_given(family, capsys, words, said):
    assert main(["generate", str(family / "toy"), *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err + captured.out


def test_the_help_of_a_run_shows_its_own_defaults(family, capsys):
    assert main(["generate", str(family / "toy"), "--help"]) == 0
    told = capsys.readouterr().out
    assert "Paint some toys." in told
    assert all(text in told for text in ("NAME", "What to paint.", "default: blue", "How wide.", "--step"))


def test_the_help_without_a_run_lists_the_families(family, capsys):
    assert main(["generate", "--help"]) == 0
    told = capsys.readouterr().out
    assert "Write toys." in told and "Continue text." in told
    assert "Has no options." not in told
    assert main(["generate"]) == 2


def test_words_without_a_run_say_so(family, capsys):
    assert main(["generate", "--seed", "3"]) == 2
    assert "no word here is the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("toy_shut", "objective='toy_shut', for which no task is registered"),
        ("toy_gone", "'toy_gone'"),
        ("toy_silent", "whose task has no command line; open it with dew.pipeline"),
    ],
)
def test_a_run_that_cannot_answer_is_refused_by_its_objective(family, capsys, run, said):
    assert main(["generate", str(family / run), "x"]) == 2
    assert said in capsys.readouterr().err


def test_pipeline_opens_any_familys_task_with_what_it_was_given(family):
    task = dew.pipeline(family / "toy", step=3, ema=False, dtype="bfloat16", param_dtype="float32")
    assert task.opened == {"step": 3, "ema": False, "dtype": "bfloat16", "param_dtype": "float32"}
    assert dew.pipeline(family / "toy_silent").opened == {"ema": True}
    with pytest.raises(ValueError, match=r"'toy_shut', for which no task is registered.*lm"):
        dew.pipeline(family / "toy_shut")
