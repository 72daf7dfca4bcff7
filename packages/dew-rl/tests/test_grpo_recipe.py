"""From a configuration to a trained policy: the warm start, going on, and opening the run."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

import dew
from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data import ByteTokenizer
from dew.data.text.config import TextFiles
from dew.inference.text import TextGeneration
from dew.objectives.rl import GRPORunConfig, PolicyLoss, WarmStart
from dew.objectives.rl.grpo_recipe import started, train
from dew.registry import recipes, tasks
from dew.sampling import Sampling
from dew.telemetry.history import read_journal
from dew.testing import ConfigContract
from dew.training import Checkpoints, MeshSpec

SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}


def config(place, steps=4, **fields):
    small = GRPORunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        optim=OptimConfig(optimizer="adam", learning_rate=1e-2),
        trainer=TrainerConfig(
            name="run",
            checkpoint_dir=str(place),
            batch_size=20,
            steps=steps,
            log_every=1,
            eval_every=4,
            checkpoint_every=2,
            compilation_cache_dir=None,
        ),
        sampling=Sampling(eos_id=10),
        max_new_tokens=3,
        group_size=4,
        warm_start=WarmStart(steps=40, batch_size=32, learning_rate=2e-2),
    )
    return dataclasses.replace(small, **fields)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run, and its folder."""
    place = tmp_path_factory.mktemp("grpo")
    return train(config(place)), place / "run"


class TestGRPORunConfig(ConfigContract):
    def config(self):
        return config("runs", loss=PolicyLoss(kl="k1+", dual_clip=3.0), advantages="rloo", no_spread="drop")


def test_the_recipe_is_what_the_command_line_names():
    assert recipes["grpo"] is train and recipes.config("grpo") is GRPORunConfig
    assert tasks.get("grpo") is TextGeneration


def test_the_report_has_reward_divergence_clips_entropy_length_and_completions(run):
    history = read_journal(str(run[1]))
    for name in ("reward", "kl", "clip_fraction", "entropy", "length", "no_spread", "singleton"):
        assert len(history.metrics[f"train/{name}"]) == 4, name
    assert len(history.validation["validation/reward"]) == 1
    shown = [json.loads(line) for line in (run[1] / "tracking/journal.jsonl").read_text().splitlines()]
    samples = [row["items"] for row in shown if row["kind"] == "preview"][-1]
    assert [item["prompt"] for item in samples][:2] == ["0+0=", "0+2="] and len(samples) == 10


def test_a_run_that_goes_on_does_not_repeat_its_warm_start_and_ends_like_the_whole_one(
    run, tmp_path, monkeypatch
):
    train(config(tmp_path, steps=2))
    monkeypatch.setattr(WarmStart, "variables", lambda *given, **named: pytest.fail("a second warm start"))
    state = train(config(tmp_path, steps=4))
    jax.tree.map(np.testing.assert_array_equal, state.params, run[0].params)
    jax.tree.map(np.testing.assert_array_equal, state.ema, run[0].ema)


def test_the_warm_start_is_the_frozen_reference_and_follows_from_the_seed(run):
    settings = config("unused").resolved(ByteTokenizer())
    again = started(settings, ByteTokenizer())
    jax.tree.map(np.testing.assert_array_equal, run[0].ema["params"], again["params"])
    other = dataclasses.replace(settings, trainer=dataclasses.replace(settings.trainer, seed=1))
    heads = [each["params"]["lm_head"]["kernel"] for each in (again, started(other, ByteTokenizer()))]
    assert (heads[0] != heads[1]).any()


def test_the_warm_start_teaches_the_form_and_not_the_answer():
    settings = config("unused", warm_start=WarmStart(steps=150, batch_size=64, learning_rate=1e-2))
    settings = settings.resolved(ByteTokenizer())
    objective = settings.build(variables=started(settings, ByteTokenizer()))
    prompts = [ByteTokenizer().encode(prompt) for prompt in settings.data.prompts()]
    mask = np.ones((100, 4), np.int32)
    key = jax.random.key(0)
    answers = objective.responder(objective.pretrained, np.asarray(prompts), mask, key=key)
    form = np.mean([len(text) == 1 and text.isdigit() for text in answers.responses])
    assert form > 0.9 and answers.rewards.mean() < 0.2


def test_the_opened_run_is_the_live_policy_with_the_runs_tokenizer_and_sampling(run):
    pytest.importorskip("dew.inference.tasks", reason="dew-inference opens runs")
    task = dew.pipeline(run[1])
    jax.tree.map(np.testing.assert_array_equal, task.variables["params"], run[0].params["params"])
    assert (task.sampling, task.max_new_tokens) == (Sampling(eos_id=10), 3)
    assert len(task(["3+4=", "9+9="], seed=0).text) == 2


def test_generation_from_the_command_line_answers_a_prompt(run, capsys):
    command = pytest.importorskip("dew.inference.tasks.command", reason="dew-inference opens runs")
    assert command.main([str(run[1]), "3+4=", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("3+4=")


def test_data_without_a_checker_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="data=TextFiles has no checker"):
        train(config(tmp_path, data=TextFiles(seq_len=8)))
    assert Checkpoints(tmp_path / "run/checkpoints").latest is None and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inner_steps": 2}, r"inner_steps=2 is not supported in this version"),
        ({"objective": "ppo"}, r"objective='ppo' is not supported"),
        ({"group_size": 0}, r"group_size=0 must be at least 1"),
        ({"max_new_tokens": 0}, r"max_new_tokens=0 must be at least 1"),
        ({"sampling": Sampling(temperature=0)}, r"sampling.temperature=0 draws one response only"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        config("runs", **fields)


def test_rows_that_a_sequence_axis_does_not_cut_are_refused_before_any_work():
    settings = config("runs", trainer=TrainerConfig(steps=1, mesh=MeshSpec(sequence=5)))
    with pytest.raises(ValueError, match=r"max_new_tokens - 1=6 must be a multiple of mesh\.sequence=5"):
        settings.build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip_low": 1.5}, r"loss.clip_low=1.5"),
        ({"clip_high": -0.1}, r"loss.clip_high=-0.1"),
        ({"dual_clip": 1.1}, r"loss.dual_clip=1.1 must be above 1 \+ clip_high"),
        ({"kl_weight": -1.0}, r"loss.kl_weight=-1.0"),
        ({"correction": 0.5}, r"loss.correction=0.5"),
        ({"correction": 2.0, "reading": "sampled"}, r"use one of the two"),
    ],
)
def test_a_loss_out_of_its_range_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(**fields)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 300}, "vocab_size=300 is not the 256 ids"),
        ({"max_seq_len": 6}, "max_seq_len=6 is shorter than"),
    ],
)
def test_model_sizes_that_do_not_fit_the_prompts_are_refused(sizes, message):
    model = ModelConfig("causal_transformer", config={**SIZES, **sizes}, dtype="float32")
    with pytest.raises(ValueError, match=message):
        config("runs", model=model).build()


def test_an_end_that_the_model_does_not_have_is_refused_before_the_warm_start(tmp_path, monkeypatch):
    monkeypatch.setattr(WarmStart, "variables", lambda *given, **named: pytest.fail("a warm start"))
    with pytest.raises(ValueError, match="eos_id=256 is outside the model's ids, 0 to 255"):
        train(config(tmp_path, sampling=Sampling(eos_id=256)))


def test_a_pool_of_processes_is_refused_before_the_warm_start(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(WarmStart, "variables", lambda *given, **named: pytest.fail("a warm start"))
    with pytest.raises(NotImplementedError, match="a pool of 2 processes"):
        train(config(tmp_path))
