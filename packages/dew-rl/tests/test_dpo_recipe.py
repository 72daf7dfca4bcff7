"""From a configuration to a preference run, its resumption and its policy."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import linen as nn

from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.chat import PreferencePairs, Prompts
from dew.data.preferences import SumPairs
from dew.data.text import ByteTokenizer
from dew.data.text.config import TextFiles
from dew.inference.text import TextGeneration
from dew.interop import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.rl import DPORunConfig, WarmStart, dpo_recipe
from dew.objectives.rl.preference_scores import PairScores, preference_accuracy, reference_divergence
from dew.registry import recipes, tasks
from dew.sampling.text.config import Sampling
from dew.telemetry.history import read_journal
from dew.testing import ConfigContract, MetricContract
from dew.training import MeshSpec
from dew.training.runs import load_run

pytestmark = pytest.mark.alone

FIELDED = ModelConfig("causal_transformer", config={"vocab_size": 256})


def small(place, **changes):
    trainer = {
        "name": "pairs",
        "checkpoint_dir": str(place),
        "batch_size": 8,
        "steps": 4,
        "log_every": 2,
        "eval_every": 4,
        "checkpoint_every": 2,
        "compilation_cache_dir": None,
    }
    return DPORunConfig(
        model=ModelConfig(
            "causal_transformer", config={"hidden_size": 16, "num_layers": 1, "num_heads": 2}, dtype="float32"
        ),
        data=SumPairs(rejections=1, held_out=0.01),
        optim=OptimConfig(optimizer="adamw", learning_rate=1e-2),
        trainer=TrainerConfig(**trainer | changes),
        warm_start=WarmStart(steps=3, batch_size=4),
        sample_prompts=("1+2=", "3+4="),
        sample_tokens=3,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps and its directory."""
    place = tmp_path_factory.mktemp("dpo")
    return dpo_recipe.train(small(place)), place / "pairs"


class TestDPORunConfig(ConfigContract):
    def config(self):
        return dataclasses.replace(
            small("runs"), loss="ipo", beta=0.3, sampling=Sampling(temperature=0.5, eos_id=7)
        )


def scores(chosen, rejected, weights, divergence, tokens):
    pairs = len(chosen)
    return PairScores(
        losses=np.zeros(pairs),
        weights=np.asarray(weights),
        chosen_rewards=np.asarray(chosen),
        rejected_rewards=np.asarray(rejected),
        chosen_log_probs=np.zeros(pairs),
        rejected_log_probs=np.zeros(pairs),
        divergence=np.asarray(divergence),
        tokens=np.asarray(tokens),
    )


PASS = [
    scores([1.0, 2.0, 0.5], [0.0, 2.0, 0.7], [1, 1, 1], [1.0, 2.0, 3.0], [2, 2, 4]),
    scores([3.0, 9.0], [1.0, 0.0], [1, 0], [2.0, np.inf], [4, 9]),
    scores([0.0], [1.0], [1], [0.0], [4]),
]


class TestPreferenceAccuracy(MetricContract):
    """Of five counted pairs two are won, one is a tie and two are lost."""

    def metric(self):
        return preference_accuracy()

    def artifacts(self):
        return PASS

    def expected(self):
        return 2 / 5


class TestReferenceDivergence(MetricContract):
    def metric(self):
        return reference_divergence()

    def artifacts(self):
        return PASS

    def expected(self):
        return 8 / 16


def test_run_records_its_objective_and_its_curves(run):
    state, directory = run
    assert int(state.step) == 4
    assert json.loads((directory / "run.json").read_text())["objective"] == "dpo"
    history = read_journal(directory)
    assert {"train/loss", "train/accuracy", "train/margin"} <= history.metrics.keys()
    names = ("preference_accuracy", "likelihood_accuracy", "preference_loss", "preference_margin", "kl")
    assert {f"validation/{name}" for name in names} <= history.validation.keys()
    assert [item["prompt"] for item in history.previews[-1].items] == ["1+2=", "3+4="]


def test_reference_is_the_warm_start_and_a_warm_start_is_a_function_of_the_seed(run):
    state, _ = run
    config = small("unused").resolved(ByteTokenizer())
    again = dpo_recipe.started_policy(config, ByteTokenizer())
    jax.tree.map(np.testing.assert_array_equal, state.averaged["params"], again["params"])
    other = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, seed=1))
    moved = dpo_recipe.started_policy(other, ByteTokenizer())
    assert not np.array_equal(moved["params"]["lm_head"]["kernel"], again["params"]["lm_head"]["kernel"])


def test_warm_start_reads_rows_of_the_runs_own_seed(monkeypatch):
    asked = []
    config = small("unused", seed=5).resolved(ByteTokenizer())
    monkeypatch.setattr(SumPairs, "form", lambda self, count, *, seed: asked.append((count, seed)) or [])
    with pytest.raises(ValueError, match="read 12 examples, and 0 are given"):
        dpo_recipe.started_policy(config, ByteTokenizer())
    assert asked == [(12, 5)]


def test_resumed_run_equals_the_uninterrupted_one_and_does_not_start_again(run, tmp_path, monkeypatch):
    whole, _ = run
    dpo_recipe.train(small(tmp_path, steps=2))
    monkeypatch.setattr(dpo_recipe, "started_policy", refused)
    resumed = dpo_recipe.train(small(tmp_path))
    for part in ("params", "opt_state", "ema"):
        jax.tree.map(np.testing.assert_array_equal, getattr(resumed, part), getattr(whole, part))


def test_process_settings_come_before_the_supervised_start(tmp_path, monkeypatch):
    monkeypatch.setattr(dpo_recipe, "started_policy", refused)
    with pytest.raises(ValueError, match=r"trainer\.xla_flags='--xla_late=1' comes too late"):
        dpo_recipe.train(small(tmp_path, xla_flags="--xla_late=1"))


def refused(*_):
    raise AssertionError("the supervised start ran")


def test_policy_of_a_run_is_the_trained_one_with_the_runs_sampling(run):
    state, directory = run
    for task in (TextGeneration.from_run(directory), TextGeneration.from_run(directory, ema=False)):
        jax.tree.map(np.testing.assert_array_equal, task.variables["params"], state.params["params"])
    assert tasks.get("dpo") is TextGeneration
    assert (task.max_new_tokens, task.sampling.eos_ids) == (3, (10,))
    assert len(task("1+2=", seed=0).text) == 1


def test_configuration_rebuilds_from_the_run(run):
    _, directory = run
    config = load_run(str(directory)).config
    assert isinstance(config, DPORunConfig) and config.warm_start == WarmStart(steps=3, batch_size=4)
    assert recipes.get("dpo") is dpo_recipe.train


def test_preset_fits_its_own_parts():
    assert DPORunConfig.starting_point().build().seq_len == SumPairs().seq_len


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective": "lm"}, "objective='lm'"),
        ({"beta": 0.0}, r"beta=0\.0"),
        ({"sample_tokens": 0}, "sample_tokens=0"),
    ],
)
def test_values_that_make_no_run_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        DPORunConfig(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": TextFiles()},
            r"data=TextFiles has none .*; set --warm-start\.steps 0",
        ),
        ({"data": Prompts(path="x")}, "data=Prompts has no seq_len; .* use data:preference-pairs or"),
        (
            {"pretrained": "x", "model": FIELDED},
            r"pretrained=x .*; set --warm-start\.steps 0",
        ),
        ({"sample_prompts": ("1+2=", "33+4=")}, r"sample_prompts=.* make 4, 5 tokens; .* one length"),
        ({"sample_prompts": ("",)}, r"sample_prompts=\(''\,\) make 0 tokens"),
        ({"sampling": Sampling(eos_id=256)}, "eos_id=256 is outside the model's ids, 0 to 255"),
        ({"sample_tokens": 30}, r"sample_tokens=30, over the model's max_seq_len=12; use at most .* 8"),
        ({"model": ModelConfig("causal_transformer", config={"vocab_size": 9})}, "vocab_size=9"),
        ({"model": ModelConfig("causal_transformer", config={"max_seq_len": 4})}, "max_seq_len=4"),
        ({"trainer": TrainerConfig(steps=1, mesh=MeshSpec(sequence=4))}, r"data\.seq_len=\d+ must be a mult"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused_before_any_work(changes, message, tmp_path):
    config = dataclasses.replace(small(tmp_path), **changes)
    if "sample_tokens" in changes:
        model = dataclasses.replace(config.model, config={**config.model.config, "max_seq_len": 12})
        config = dataclasses.replace(config, model=model)
    with pytest.raises(ValueError, match=message):
        dpo_recipe.train(config)
    assert not (tmp_path / "pairs").exists()


def on_files(place, data):
    """A run on files, without a start that nobody asked for and without a preview."""
    plain = {"warm_start": WarmStart(), "sample_prompts": (), "data": data}
    optim = OptimConfig(optimizer="adam", learning_rate=3e-2)
    return dataclasses.replace(small(place, steps=30, eval_every=30, log_every=1), **plain, optim=optim)


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Pairs in which a response of `y` is preferred to one of `n`."""
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": f"q{n} ", "chosen": "y" * (n % 3 + 1), "rejected": "n" * (n % 4 + 1)} for n in range(40)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PreferencePairs(path=str(file), seq_len=11, val_fraction=0.3)


def test_preferences_are_learned_from_a_file_of_pairs(tmp_path, pairs, monkeypatch, capsys):
    monkeypatch.setattr(dpo_recipe, "started_policy", refused)
    dpo_recipe.train(on_files(tmp_path, pairs))
    history = read_journal(tmp_path / "pairs")
    loss = history.metrics["train/loss"]
    assert loss[1] == pytest.approx(np.log(2), abs=1e-5) and loss[30] < 0.5 * loss[1]
    assert history.validation["validation/preference_accuracy"][30] == 1
    assert "train: " in capsys.readouterr().out
    assert load_run(str(tmp_path / "pairs")).config.warm_start.steps == 0


def test_data_that_yields_no_pairs_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("some text\n" * 99)
    text = TextFiles(path=str(tmp_path / "text.txt"), seq_len=8)
    with pytest.raises(ValueError, match=r"reads 'chosen', 'chosen_mask', .* this data yields 'text'"):
        dpo_recipe.train(on_files(tmp_path, text))
    assert not (tmp_path / "pairs").exists()


def test_policy_and_reference_start_from_a_published_decoder(tmp_path, pairs):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 2}
    model = CausalTransformer(vocab_size=256, max_seq_len=16, **sizes)
    weights = nn.unbox(model.init(jax.random.key(3), np.zeros((1, 4), np.int32)))
    save_pretrained_decoder(model, weights, tmp_path / "published")
    plain = ModelConfig("causal_transformer", dtype="float32")
    config = dataclasses.replace(
        on_files(tmp_path, pairs), pretrained=str(tmp_path / "published"), model=plain
    )
    state = dpo_recipe.train(config)
    jax.tree.map(np.testing.assert_array_equal, unboxed(state.averaged), weights)
    record = load_run(str(tmp_path / "pairs")).config
    assert record.model.config["max_seq_len"] == 16 and record.pretrained == config.pretrained


@pytest.mark.slow
def test_preferences_are_learned_on_held_out_sums(tmp_path):
    """A third of the preset's length already ranks most of the sums it never saw."""
    preset = DPORunConfig.starting_point()
    trainer = dataclasses.replace(
        preset.trainer, name="learns", checkpoint_dir=str(tmp_path), steps=1200, eval_every=1200
    )
    dpo_recipe.train(dataclasses.replace(preset, trainer=trainer))
    accuracy = read_journal(tmp_path / "learns").validation["validation/preference_accuracy"]
    assert accuracy[1200] > 0.85
