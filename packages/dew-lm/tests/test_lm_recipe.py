"""From a configuration to a trained run."""

from __future__ import annotations

import copy
import functools
import json
import operator

import numpy as np
import pytest

from dew.cli import main
from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.text.config import TextFiles
from dew.objectives.lm import LMRunConfig
from dew.objectives.lm.recipe import train
from dew.registry import recipes
from dew.training.record import permitted_changes

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model trained on a text of one repeated line, and its run's directory."""
    place = tmp_path_factory.mktemp("recipe")
    text = place / "text.txt"
    text.write_text("abcdefghij\n" * 2000)
    config = LMRunConfig(
        model=ModelConfig(
            "causal_transformer", config={"hidden_size": 32, "num_layers": 1, "num_heads": 2}, dtype="float32"
        ),
        data=TextFiles(path=str(text), seq_len=32, val_windows=8),
        optim=OptimConfig(learning_rate=2e-2),
        trainer=TrainerConfig(
            name="line",
            checkpoint_dir=str(place),
            batch_size=8,
            steps=60,
            log_every=20,
            eval_every=60,
            checkpoint_every=60,
            compilation_cache_dir=None,
        ),
        sample_prompt="abc",
        sample_tokens=8,
        ema_decay=None,
    )
    return train(config), place / "line"


def journal(directory, kind):
    lines = (directory / "tracking/journal.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_the_recipe_learns_a_repeated_line(run):
    state, directory = run
    assert int(state.updates) == 60
    assert journal(directory, "validation")[-1]["values"]["validation/perplexity"] < 1.5


def test_the_record_holds_the_sizes_that_came_from_tokenizer_and_data(run):
    record = json.loads((run[1] / "run.json").read_text())
    assert record["model"]["config"]["vocab_size"] == 256
    assert record["model"]["config"]["max_seq_len"] == 32
    assert LMRunConfig.load(str(run[1])).build().model.vocab_size == 256


def test_the_preview_continues_the_prompt(run):
    shown = journal(run[1], "preview")[-1]["items"][0]
    assert shown["prompt"] == "abc" and len(shown["text"]) == 8


def test_the_recipe_is_what_the_command_line_names():
    assert recipes["lm"] is train and recipes.config("lm") is LMRunConfig


MAY_CHANGE = {
    *("name", "checkpoint_dir", "keep", "steps", "epochs", "log_every", "eval_every", "checkpoint_every"),
    *("mesh", "layout", "profile", "compilation_cache_dir", "wandb", "multi_host", "xla_flags"),
}
"""Fields of `trainer` that a run may change when it goes on, beside the loader's concurrency."""


def leaves(record, path=()):
    """Every path of a record that holds no further fields."""
    if isinstance(record, dict) and record:
        return [leaf for name, value in record.items() for leaf in leaves(value, (*path, name))]
    return [path]


def altered(record, path):
    changed = copy.deepcopy(record)
    parent = functools.reduce(operator.getitem, path[:-1], changed)
    parent[path[-1]] = "another"
    return changed


def test_everything_that_decides_what_is_computed_is_compared_when_a_run_goes_on():
    record = LMRunConfig.starting_point().to_dict()
    for path in leaves(record):
        name = ".".join(path)
        if (path[0] == "trainer" and path[1] in MAY_CHANGE) or path[:2] == ("data", "loading"):
            assert list(permitted_changes("run", record, altered(record, path))) == [name]
        else:
            with pytest.raises(ValueError, match=rf"{name} was .*, now 'another'"):
                permitted_changes("run", record, altered(record, path))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_foreign_id_met_in_training_is_one_message(tmp_path, capsys, workers):
    ids = np.zeros(2000, np.uint16)
    ids[-20] = 300
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    words = {
        "--data.path": tmp_path,
        "--data.dtype": "uint16",
        "--data.seq-len": 8,
        "--data.loading.workers": workers,
        "--model.config": '{"hidden_size": 8, "num_layers": 1, "num_heads": 1}',
        "--trainer.checkpoint-dir": tmp_path / "runs",
        "--trainer.eval-every": None,
        "--sample-tokens": 0,
        "--trainer.batch-size": 2,
        "--trainer.steps": 300,
    }
    line = ["train", "lm", "data:token-windows", *(str(word) for pair in words.items() for word in pair)]
    status, said = main(line), capsys.readouterr().err
    assert status == 1 and said.startswith("dew: ") and said.count("\n") == 1
    assert "holds the id 300 in window 247, and the run's tokenizer has ids 0 to 255" in said
