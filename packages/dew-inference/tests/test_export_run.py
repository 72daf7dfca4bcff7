"""`export_run` and `dew export`: a folder that appears whole or not at all, from runs with a layout."""

from __future__ import annotations

import json

import jax
import numpy as np
import optax
import pytest
from safetensors.flax import load_file

import dew
from dew.cli.entry import main
from dew.config import ModelConfig
from dew.data.text.config import TextFiles
from dew.inference import export_run
from dew.lora import LoRA, adapted
from dew.objectives.lm import LMRunConfig
from dew.registry import writers
from dew.sampling import Sampling
from dew.training import Checkpoints, Trainer

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "max_seq_len": 64}


def save_run(directory, **sizes):
    """A run with an average, saved before its first step and again with other weights after it."""
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config={**SIZES, **sizes}, dtype="float32"),
        data=TextFiles(seq_len=32),
        ema_decay=0.5,
        sample_tokens=20,
        sampling=Sampling(temperature=0.8, top_k=40),
    )
    config.save(str(directory))
    state = Trainer(config.build(), optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    for step in (1, 2):
        params = jax.tree.map(lambda leaf, by=step: leaf * by, state.params)
        checkpoints.save(step, state.replace(params=params), None)
    checkpoints.wait()
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "tiny")


def head(folder):
    return np.asarray(load_file(folder / "model.safetensors")["lm_head.weight"])


def test_folder_is_complete_and_says_how_the_run_samples(run, tmp_path):
    folder = export_run(run, tmp_path / "new/out")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    told = json.loads((folder / "generation_config.json").read_text())
    assert (told["temperature"], told["top_k"]) == (0.8, 40)
    assert "max_new_tokens" not in told
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_weights_are_the_average_or_the_live_ones_of_the_step(run, tmp_path):
    first = dew.pipeline(run, step=1, ema=False).variables["params"]["lm_head"]["kernel"].T
    export_run(run, tmp_path / "average")
    export_run(run, tmp_path / "live", ema=False)
    export_run(run, tmp_path / "first", ema=False, step=1)
    assert np.array_equal(head(tmp_path / "average"), first)
    assert np.array_equal(head(tmp_path / "live"), first * 2)
    assert np.array_equal(head(tmp_path / "first"), first)


def test_command_takes_the_same_choices_and_says_what_it_wrote(run, tmp_path, capsys):
    words = ["--no-ema", "--step", "2", "--dtype", "bfloat16"]
    assert main(["export", str(run), str(tmp_path / "out"), *words]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/out: LlamaForCausalLM, 5 files, 0.1 MB")
    export_run(run, tmp_path / "wide", ema=False)
    assert np.array_equal(head(tmp_path / "out"), head(tmp_path / "wide").astype(jax.numpy.bfloat16))


def test_empty_folder_is_filled(run, tmp_path):
    (tmp_path / "out").mkdir()
    export_run(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_stands_at_the_destination_is_left_as_it_is(run, tmp_path, kind, capsys):
    mine = tmp_path / "out/mine" if kind == "folder" else tmp_path / "out"
    if kind == "link":
        mine.symlink_to(tmp_path / "nowhere")
    else:
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("kept")
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert "give an empty or a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert mine.is_symlink() if kind == "link" else mine.read_text() == "kept"


@pytest.mark.parametrize("failure", [OSError("no space"), KeyboardInterrupt()], ids=repr)
def test_failure_half_way_leaves_nothing(run, tmp_path, monkeypatch, failure):
    def fails(task, folder):
        (folder / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(writers, "get", lambda name: fails)
    with pytest.raises(type(failure)):
        export_run(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_destination_that_fills_up_meanwhile_is_not_written_over(run, tmp_path, monkeypatch):
    def slow(task, folder):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine").write_text("kept")

    monkeypatch.setattr(writers, "get", lambda name: slow)
    with pytest.raises(FileExistsError, match="holds files"):
        export_run(run, tmp_path / "out")
    assert (tmp_path / "out/mine").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_model_without_a_layout_is_refused_by_name(run, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((run / "run.json").read_text())
    record["model"]["architecture"] = "mine"
    (other / "run.json").write_text(json.dumps(record))
    assert main(["export", str(other), str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert f"dew: {other} trained the model 'mine' (objective 'lm'), which has no published layout" in told
    assert "models that have one: causal_transformer" in told
    assert not (tmp_path / "out").exists()


def test_field_without_a_layout_is_refused_by_name_and_leaves_nothing(tmp_path, capsys):
    run = save_run(tmp_path / "run", final_logit_softcap=30.0)
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert "final_logit_softcap=30.0 has no published layout" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_missing_run_and_bucket_are_refused(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="run"):
        export_run(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match="gs://bucket/out is no folder of this machine"):
        export_run(run, "gs://bucket/out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oracle
@pytest.mark.slow
def test_trained_run_writes_the_same_text_in_transformers(tmp_path):
    """The default recipe, cut short: squared ReLU and a window of 128, crossed by 300 greedy tokens."""
    transformers = pytest.importorskip("transformers")
    place = ["--trainer.checkpoint-dir", str(tmp_path), "--trainer.name", "run"]
    assert main(["train", "lm", *place, "--trainer.steps", "300", "--sample-tokens", "0"]) == 0
    folder = export_run(tmp_path / "run", tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = dew.pipeline(tmp_path / "run")
    for prompt in ("def ", "class Größe:\n", "import os\n\n"):
        given = tokenizer(prompt, return_tensors="pt")
        drawn = theirs.generate(**given, do_sample=False, max_new_tokens=300)[0]
        expected = ours(prompt, 300, seed=0, sampling=Sampling(temperature=0))
        assert tokenizer.decode(drawn) == prompt + expected.text[0]


def test_an_adapter_run_is_written_as_the_merged_model_its_base_or_the_adapter_alone(tmp_path):
    lora = LoRA(("self_attn/q_proj",), rank=2, alpha=4.0)
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        data=TextFiles(seq_len=32),
        ema_decay=None,
        sample_tokens=0,
        lora=lora,
    )
    config.save(str(tmp_path / "run"))
    trainer = Trainer(adapted(config.build(), lora), optax.sgd(0.1), key=jax.random.key(0))
    state = trainer.initial_state()
    state = state.replace(
        params={**state.params, "params": jax.tree.map(lambda x: x + 1, state.params["params"])}
    )
    checkpoints = Checkpoints(f"{tmp_path}/run/checkpoints")
    checkpoints.save(1, state, None)
    checkpoints.wait()
    for part in ("model", "base", "adapter"):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / part), "--part", part]) == 0
    name = "model.layers.0.self_attn.q_proj"
    merged, base = (load_file(tmp_path / part / "model.safetensors") for part in ("model", "base"))
    factors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    np.testing.assert_allclose(
        merged[f"{name}.weight"], base[f"{name}.weight"] + 2 * b @ a, rtol=1e-6, atol=1e-6
    )
    np.testing.assert_array_equal(merged["lm_head.weight"], base["lm_head.weight"])
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["r"] == 2


@pytest.mark.parametrize("part", ["adapter", "base"])
def test_a_run_of_the_whole_model_has_no_adapter_to_write(run, tmp_path, part):
    with pytest.raises(ValueError, match=r"trained the whole model \(lora=None\), so it has no adapter"):
        export_run(run, tmp_path / "out", part=part)
    assert not (tmp_path / "out").exists()
