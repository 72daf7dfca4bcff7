"""Runs that start from a published decoder: what decides its fields, its weights and its tokenizer."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import linen as nn

from dew.cli import main
from dew.cli.errors import report
from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.text import load_tokenizer
from dew.data.text.config import TextFiles
from dew.inference import TextGeneration
from dew.interop import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.lm import LMRunConfig
from dew.objectives.lm.recipe import train
from dew.sampling.text.faults import UndefinedDistribution

MODEL = CausalTransformer(
    vocab_size=20,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=24,
    max_seq_len=32,
    rope_theta=500.0,
    norm_eps=1e-3,
    tie_embeddings=True,
)
VARIABLES = nn.unbox(MODEL.init(jax.random.key(7), jnp.zeros((1, 1), jnp.int32)))


@pytest.fixture
def published(tmp_path):
    """A decoder's folder, with a tokenizer of fewer ids than it has rows."""
    folder = tmp_path / "model"
    save_pretrained_decoder(MODEL, VARIABLES, folder)
    vocab = {letter: index for index, letter in enumerate(["<end>", *"abcdefghij", "\n"])}
    model = tokenizers.models.WordLevel(vocab, unk_token="<end>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder


@pytest.fixture
def config(published, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij\n" * 200)
    return LMRunConfig(
        model=ModelConfig("causal_transformer", dtype="float32"),
        data=TextFiles(path=str(text), seq_len=16, val_windows=2),
        optim=OptimConfig(optimizer="adam", learning_rate=0.0),
        trainer=TrainerConfig(
            name="from-published",
            checkpoint_dir=str(tmp_path / "runs"),
            batch_size=8,
            steps=2,
            eval_every=2,
            checkpoint_every=2,
            compilation_cache_dir=None,
        ),
        tokenizer=str(published),
        sample_tokens=0,
        ema_decay=None,
        pretrained=str(published),
    )


def run_of(config):
    return Path(config.trainer.checkpoint_dir) / config.trainer.name


def test_the_run_starts_at_the_published_weights_and_records_their_fields(config):
    state = train(config)
    jax.tree.map(np.testing.assert_array_equal, unboxed(state.params), VARIABLES)
    record = json.loads((run_of(config) / "run.json").read_text())
    fields = record["model"]["config"]
    assert {name: fields[name] for name in ("vocab_size", "rope_theta", "norm_eps", "tie_embeddings")} == {
        "vocab_size": 20,
        "rope_theta": 500.0,
        "norm_eps": 1e-3,
        "tie_embeddings": True,
    }


def test_a_started_run_needs_the_published_folder_no_more(config, published, tmp_path):
    train(config)
    (published / "model.safetensors").rename(tmp_path / "gone")
    longer = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, steps=4))
    assert int(train(longer).step) == 4
    task = TextGeneration.from_run(run_of(config), ema=False)
    jax.tree.map(np.testing.assert_array_equal, unboxed(task.variables), VARIABLES)


def test_a_repository_is_recorded_with_its_commit(config, published, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--someone--small"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "first").write_text(commit)
    shutil.copytree(published, cache / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    named = dataclasses.replace(config, pretrained="someone/small@first")
    resolved = named.resolved(load_tokenizer(str(published)))
    assert resolved.pretrained == f"someone/small@{commit}"
    jax.tree.map(np.testing.assert_array_equal, unboxed(named.build().held_variables()), VARIABLES)


def test_a_longest_row_may_be_chosen(config):
    chosen = dataclasses.replace(config, model=dataclasses.replace(config.model, config={"max_seq_len": 64}))
    objective = chosen.build()
    assert objective.model.max_seq_len == 64
    jax.tree.map(np.testing.assert_array_equal, unboxed(objective.held_variables()), VARIABLES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"norm_eps": 1e-6}}, "model.config names norm_eps, and pretrained="),
        ({"model": {"vocab_size": 20, "num_heads": 4}}, "model.config makes .*; the checkpoint decides"),
        ({"tokenizer": "byte"}, "set --tokenizer to the folder of its own"),
        ({"pretrained": "./nowhere"}, "nowhere is no folder"),
    ],
)
def test_what_contradicts_the_published_model_is_refused(config, fields, message):
    if "model" in fields:
        fields = {"model": dataclasses.replace(config.model, config=fields["model"])}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        dataclasses.replace(config, **fields).build()


def test_a_model_with_fewer_rows_than_the_tokenizer_has_ids_is_refused(config, published):
    small = dataclasses.replace(MODEL, vocab_size=8, parent=None)
    save_pretrained_decoder(
        small, nn.unbox(small.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))), published / "sub"
    )
    with pytest.raises(ValueError, match=r"makes 12 ids, and pretrained=.* was trained on 8"):
        dataclasses.replace(config, pretrained=str(published / "sub")).resolved(
            load_tokenizer(str(published))
        )


def test_weights_without_a_distribution_end_a_run_and_a_generation_in_one_message(config, published, capsys):
    broken = published.with_name("broken")
    save_pretrained_decoder(MODEL, jax.tree.map(lambda leaf: leaf * np.nan, VARIABLES), broken)
    with pytest.raises(UndefinedDistribution, match="the model's own logits are NaN") as caught:
        train(dataclasses.replace(config, pretrained=str(broken), sample_prompt="a", sample_tokens=2))
    capsys.readouterr()
    assert report(caught.value) == 1
    assert main(["generate", str(run_of(config)), "abc"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all(line.startswith("dew: row 0 has no distribution") for line in said)
