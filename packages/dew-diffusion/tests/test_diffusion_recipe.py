"""From a configuration to a trained run, and back from its directory."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.images.config import Digits, ImageFolder
from dew.inference.images import TextToImage
from dew.objectives.diffusion import DiffusionRunConfig
from dew.objectives.diffusion.recipe import train
from dew.telemetry.png import encode_png

pytestmark = pytest.mark.alone

TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}


def short(place, name, data, **trainer):
    return dataclasses.replace(
        DiffusionRunConfig.starting_point(),
        model=ModelConfig("simple_dit", TINY, dtype="float32"),
        data=data,
        optim=OptimConfig(optimizer="muon", learning_rate=1e-2, weight_decay=0.0),
        trainer=TrainerConfig(
            name=name,
            checkpoint_dir=str(place),
            compilation_cache_dir=None,
            **{"batch_size": 32, "steps": 40, "log_every": 20, "eval_every": 40, "checkpoint_every": 40}
            | trainer,
        ),
        sampling_steps=2,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("diffusion")
    return train(short(place, "digits", Digits(), steps=80)), place / "digits"


def journal(directory, kind):
    lines = (directory / "tracking/journal.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_the_recipe_learns_from_real_digits(run):
    state, directory = run
    assert int(state.updates) == 80
    losses = [
        row["values"]["train/loss"] for row in journal(directory, "metrics") if "train/loss" in row["values"]
    ]
    assert losses[-1] < 0.75 * losses[0]


def test_previews_show_every_class_at_every_evaluation(run):
    shown = journal(run[1], "preview")
    assert [event["step"] for event in shown] == [40, 80]
    for event in shown:
        captions = ", ".join(item["caption"] for item in event["items"])
        assert captions == "columns: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"


def test_a_run_is_read_back_with_its_sizes_and_classes(run):
    record = json.loads((run[1] / "run.json").read_text())
    assert record["model"]["config"]["patch_size"] == 2 and record["text"]["classes"] == list("0123456789")
    task = TextToImage.from_run(str(run[1]))
    assert task.steps == 2 and np.asarray(task(["7"], seed=0).host().images).shape == (1, 8, 8, 1)


def test_a_folder_without_classes_trains_without_a_condition_and_says_so(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for index in range(80):
        pixels = draw.integers(0, 256, (16, 16, 3)).astype(np.uint8)
        (tmp_path / f"{index}.png").write_bytes(encode_png(pixels))
    data = ImageFolder(path=str(tmp_path), image_size=16)
    train(short(tmp_path, "folder", data, steps=2, batch_size=4, eval_every=2, checkpoint_every=2))
    assert "no classes" in capsys.readouterr().out
    record = json.loads((tmp_path / "folder/run.json").read_text())
    assert record["text"] is None
