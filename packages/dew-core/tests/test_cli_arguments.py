"""A configuration from words: choices anywhere, presets, recorded runs, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dew.cli.arguments import parse
from dew.cli.errors import UserError
from dew.cli.train import main as train
from dew.plugins.loader import installed
from dew.telemetry import JournalTracker

PLUGIN = """
from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1

@hookimpl
def dew_components():
    yield Component("dataset", "toy_lines", "toy_parts:Lines", "Lines of a file.")
    yield Component("dataset", "toy_folder", "toy_parts:Folder", "A folder.")
    yield Component("dataset", "toy_apart", "toy_parts:Apart", "Of another base.")
    yield Component("dataset", "toy_broken", "toy_nowhere:Broken", "Cannot be imported.")
    yield Component("recipe", "toy", "toy_parts:train", "Train a toy.", config="toy_parts:ToyConfig")
    yield Component("objective", "toy", "toy_parts:train", "A toy.", config="toy_parts:ToyConfig")
"""
PARTS = '''
from __future__ import annotations
from dataclasses import dataclass
from dew.config import RunConfig, TrainerConfig
from dew.data.config import DatasetSpec

class Spec(DatasetSpec):
    def load(self, *, batch, tokenize=None):
        raise NotImplementedError

@dataclass(frozen=True, kw_only=True)
class Lines(Spec):
    """Lines.

    Attributes:
        path: the file.
    """
    path: str | None = None

@dataclass(frozen=True, kw_only=True)
class Folder(Spec):
    """A folder."""
    chosen_by = ("folder",)
    folder: str

@dataclass(frozen=True, kw_only=True)
class Apart(DatasetSpec):
    """Of another base."""
    chosen_by = ("place",)
    place: str

    def load(self, *, batch, tokenize=None):
        raise NotImplementedError

@dataclass(frozen=True)
class ToyConfig(RunConfig):
    """Train a toy.

    Attributes:
        depth: layers.
    """
    depth: int = 3

    @classmethod
    def starting_point(cls):
        return cls(data=Lines(path="preset"), objective="toy", trainer=TrainerConfig(steps=7))

def train(config):
    import toy_parts
    toy_parts.seen = config
'''


@pytest.fixture
def config_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """The configuration of a recipe that an installed toy plugin brings."""
    (tmp_path / "toy_plugin.py").write_text(PLUGIN)
    (tmp_path / "toy_parts.py").write_text(PARTS)
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dew]\ntoy = toy_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    import toy_parts

    yield toy_parts.ToyConfig
    installed.cache_clear()
    for name in ("toy_plugin", "toy_parts"):
        sys.modules.pop(name, None)


def read(config_class: type, line: str) -> Any:
    return parse("toy", config_class, line.split())


def test_no_words_give_the_preset_itself(config_class: type):
    config = read(config_class, "")
    assert config == config_class.starting_point()
    assert type(config) is config_class and type(config.trainer.mesh).__name__ == "MeshSpec"


@pytest.mark.parametrize(
    "line",
    [
        "--data.path X --depth 5",
        "data:toy-lines --data.path X --depth 5",
        "--data.path X data:toy_lines --depth 5",
        "--depth 5 --data.path=X data:toy-lines",
    ],
)
def test_choice_of_a_dataset_may_be_left_out_or_stand_anywhere(config_class: type, line: str):
    config = read(config_class, line)
    assert (config.data.path, config.depth, config.trainer.steps) == ("X", 5, 7)


def test_another_dataset_brings_its_own_options(config_class: type):
    config = read(config_class, "--data.folder F data:toy-folder --trainer.steps 9")
    assert type(config.data).__name__ == "Folder" and config.data.folder == "F"
    assert config.trainer.steps == 9


def test_option_that_chooses_a_dataset_puts_it_in_the_place_of_its_like(config_class: type):
    assert read(config_class, "--data.folder F").data.folder == "F"
    assert read(config_class, "--data.path F").data.path == "F"


def test_option_of_a_dataset_of_another_base_chooses_nothing(config_class: type, capsys: Any):
    with pytest.raises(SystemExit, match="2"):
        read(config_class, "--data.place F")
    assert "--data.place" in capsys.readouterr().err


def test_missing_required_option_of_a_choice_ends_with_status_2(config_class: type, capsys: Any):
    with pytest.raises(SystemExit, match="2"):
        read(config_class, "data:toy-folder")
    assert "--data.folder" in capsys.readouterr().err


def test_option_of_one_schedule_alone_chooses_it(config_class: type):
    power = read(config_class, "--optim.schedule.exponent -0.5 --optim.schedule.scale 4").optim.schedule
    assert type(power).__name__ == "Power"


def test_option_of_several_schedules_asks_which(config_class: type):
    with pytest.raises(UserError, match=r"optim\.schedule:cosine, optim\.schedule:linear"):
        read(config_class, "--optim.schedule.warmup-updates 3")


def test_chosen_schedule_takes_its_options(config_class: type):
    cosine = read(config_class, "--optim.schedule.warmup-updates 3 optim.schedule:cosine").optim.schedule
    assert (type(cosine).__name__, cosine.warmup_updates) == ("Cosine", 3)


def test_option_of_an_optional_part_brings_the_part(config_class: type):
    assert read(config_class, "").trainer.wandb is None
    assert read(config_class, "--trainer.wandb.project p").trainer.wandb.project == "p"


def test_epochs_replace_the_steps_of_the_preset(config_class: type):
    trainer = read(config_class, "--trainer.epochs 2").trainer
    assert (trainer.steps, trainer.epochs) == (None, 2)


def test_json_field_reads_one_string(config_class: type):
    assert parse("toy", config_class, ["--model.config", '{"a": [1, 2]}']).model.config == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("data:toy-line", "'toy-line' is no choice for data; did you mean toy-lines or toy-folder"),
        ("dta:toy-lines", "'dta' is no choice; did you mean data?"),
        ("--resume", "--resume needs the folder of a run"),
        ("--resume nowhere", "--resume nowhere: no run.json is there"),
    ],
)
def test_wrong_choice_is_refused_with_a_way_out(config_class: type, line: str, hint: str):
    with pytest.raises(UserError) as refused:
        read(config_class, line)
    assert hint.split(" or toy")[0] in str(refused.value)


@pytest.mark.parametrize(("line", "hint"), [("--trainer.stps 3", "--trainer.steps"), ("--dept 3", "--depth")])
def test_mistyped_option_offers_the_close_one(config_class: type, line: str, hint: str, capsys: Any):
    with pytest.raises(SystemExit, match="2"):
        read(config_class, line)
    assert hint in capsys.readouterr().err


def test_value_after_an_option_is_no_choice(config_class: type):
    assert read(config_class, "--data.path dat:a").data.path == "dat:a"


def test_choosing_a_dataset_that_cannot_be_imported_says_why(config_class: type):
    with pytest.raises(ModuleNotFoundError, match="toy_nowhere"):
        read(config_class, "data:toy_broken")


def test_help_shows_choices_with_summaries_and_the_preset(config_class: type, capsys: Any):
    with pytest.raises(SystemExit, match="0"):
        read(config_class, "--help")
    page = capsys.readouterr().out
    for text in (
        "data:toy-folder",
        "A folder.",
        "optim.schedule:cosine",
        "(default: 7)",
        "layers. (default: 3)",
    ):
        assert text in page, text


def test_resume_starts_from_the_record_and_points_at_the_run(config_class: type, tmp_path: Path):
    run = tmp_path / "runs" / "first"
    read(config_class, "--depth 8 --trainer.steps 20 data:toy-folder --data.folder F").save(str(run))
    config = read(config_class, f"--resume {run} --trainer.steps 30")
    assert (config.depth, config.data.folder, config.trainer.steps) == (8, "F", 30)
    assert (config.trainer.name, config.trainer.checkpoint_dir) == ("first", str(tmp_path / "runs"))


@pytest.mark.parametrize("option", ["--trainer.name second", "--trainer.checkpoint-dir elsewhere"])
def test_resume_beside_another_place_is_refused(config_class: type, tmp_path: Path, option: str):
    run = tmp_path / "runs" / "first"
    read(config_class, "").save(str(run))
    with pytest.raises(UserError, match=f"{option} names another place"):
        read(config_class, f"--resume {run} {option}")


def test_a_path_missing_on_resume_is_refused_with_the_directory_of_the_start(
    config_class: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import toy_parts

    def missing(config: Any) -> None:
        raise FileNotFoundError("data.path=docs is not there")

    run = tmp_path / "runs" / "first"
    read(config_class, "").save(str(run))
    monkeypatch.chdir(tmp_path)
    tracker = JournalTracker(str(run), record={})
    tracker.started(step=0, total_steps=7, unit="rows")
    tracker.finished("completed", step=7)
    monkeypatch.setattr(toy_parts, "train", missing)
    with pytest.raises(FileNotFoundError, match=r"docs is not there$"):
        train(["toy", "--resume", str(run)])
    monkeypatch.chdir(run)
    with pytest.raises(UserError, match=f"docs is not there; the run was started in {tmp_path}, and"):
        train(["toy", "--resume", str(run)])
