"""Adapters of decoders: PEFT's own files in, the same files out, and a run from training to its export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.text.config import TextFiles
from dew.interop.decoders import (
    layout_of,
    load_decoder_adapter,
    save_decoder_adapter,
    save_pretrained_decoder,
)
from dew.interop.decoders.adapters import write_adapter
from dew.interop.decoders.tensors import held_tensors
from dew.lora import LoRA, adapt, adapted, factors_of, merged, with_factors
from dew.lora.tensor_file import read_tensors
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, LMRunConfig
from dew.objectives.lm.recipe import train
from dew.training.runs import load_run

GOLDEN = Path(__file__).parent / "golden/peft"
VALUES = np.load(GOLDEN / "values.npz")
CASES = ["plain", "rslora"]
SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 4,
    "max_seq_len": 32,
    "norm_eps": 1e-2,
    "rope_theta": 20000.0,
}
MODEL = CausalTransformer(**SIZES, precision="highest")


def tensors(prefix):
    """The golden tensors below `prefix` as a variables tree of `MODEL`."""
    tree: dict = {}
    for held in held_tensors(MODEL, layout_of(MODEL)):
        value = VALUES.get(f"{prefix}/{held.name}")
        if value is not None:
            *above, leaf = held.paths[0].split("/")
            at = tree
            for part in above:
                at = at.setdefault(part, {})
            at[leaf] = jnp.asarray(value.T if leaf == "kernel" else value)
    return tree


def loaded(case):
    """Record and whole tree of a golden adapter."""
    lora, factors = load_decoder_adapter(MODEL, GOLDEN / case)
    return lora, with_factors(tensors("base"), factors)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_that_peft_merges(case):
    lora, variables = loaded(case)
    expected = tensors(f"{case}/merged")
    found = merged(variables, lora)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    # Values lie below 4; the sums differ by their order alone.
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=0, atol=5e-7), found, expected)


@pytest.mark.parametrize("case", CASES)
def test_adapted_forward_gives_the_logits_of_peft(case):
    lora, variables = loaded(case)
    without_dropout = dataclasses.replace(lora, dropout=0.0)
    objective = adapted(LMObjective(MODEL, 8, ema_decay=None), without_dropout)
    split = nn.unbox(objective.init(jax.random.key(0), variables))
    step = Step(step=0, key=jax.random.key(0))
    _, _, prediction = objective.predict(split, {"text": VALUES["ids"]}, step, train=False)
    np.testing.assert_allclose(prediction.logits, VALUES[f"{case}/logits"][:, :-1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_written_folder_has_the_tensors_and_the_fields_that_peft_wrote(case, tmp_path):
    lora, variables = loaded(case)
    save_decoder_adapter(MODEL, variables, lora, tmp_path)
    ours, theirs = (
        read_tensors(folder / "adapter_model.safetensors") for folder in (tmp_path, GOLDEN / case)
    )
    theirs = {name: value for name, value in theirs.items() if "base_layer" not in name}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)
    written, expected = (
        json.loads((folder / "adapter_config.json").read_text()) for folder in (tmp_path, GOLDEN / case)
    )
    assert written.keys() <= expected.keys()
    targets = written.pop("target_modules")
    assert {name.rpartition(".")[2] for name in targets} == set(expected["target_modules"])
    assert written == {name: expected[name] for name in written}


def test_a_matrix_that_is_published_twice_has_its_delta_twice(tmp_path):
    model = CausalTransformer(**SIZES, activation="relu2", sliding_window=4)
    lora = LoRA(("up_proj",), rank=2)
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    variables = adapt(variables, lora, key=jax.random.key(1))
    save_decoder_adapter(model, variables, lora, tmp_path)
    names = read_tensors(tmp_path / "adapter_model.safetensors")
    assert sum("gate_proj" in name for name in names) == sum("up_proj" in name for name in names) == 4
    found, factors = load_decoder_adapter(model, tmp_path)
    assert factors.keys() == factors_of(variables).keys()
    assert found.targets == ("/layers_0/mlp/up_proj", "/layers_1/mlp/up_proj")


def test_an_adapter_of_another_model_is_refused():
    narrow = CausalTransformer(**{**SIZES, "num_layers": 1})
    with pytest.raises(
        ValueError, match=r"adapts model\.layers\.1\.self_attn\.q_proj, which the model lacks"
    ):
        load_decoder_adapter(narrow, GOLDEN / "plain")
    _, factors = load_decoder_adapter(MODEL, GOLDEN / "plain")
    wide = CausalTransformer(**{**SIZES, "hidden_size": 20})
    tree = nn.unbox(wide.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    with pytest.raises(ValueError, match=r"for a kernel of shape \(16, 16\), and the model has \(20, 16\)"):
        with_factors(tree, factors)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "fields", [{}, {"activation": "relu2", "sliding_window": 4}], ids=["llama", "doubled"]
)
def test_peft_loads_the_written_adapter_onto_the_written_base(fields, tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    model = CausalTransformer(**SIZES, **fields, precision="highest")
    lora = LoRA(("self_attn/*", "mlp/*", "lm_head"), rank=3, alpha=7.0, rslora=True)
    base = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    variables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf + 0.3 if "lora_b" in str(path[-1]) else leaf,
        adapt(base, lora, key=jax.random.key(1)),
    )
    save_pretrained_decoder(model, base, tmp_path / "base")
    save_decoder_adapter(model, variables, lora, tmp_path / "adapter")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(VALUES["ids"])).logits.numpy()
    found = model.apply(merged(variables, lora), VALUES["ids"])
    assert np.abs(found - model.apply(base, VALUES["ids"])).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that trained an adapter with dropout, stopped and resumed in the middle."""
    place = tmp_path_factory.mktemp("adapter")
    (place / "text.txt").write_text("abcdefghij\n" * 500)

    def config(steps):
        return LMRunConfig(
            model=ModelConfig(
                "causal_transformer",
                config={"hidden_size": 16, "num_layers": 1, "num_heads": 2},
                dtype="float32",
            ),
            data=TextFiles(path=str(place / "text.txt"), seq_len=16, val_windows=8),
            optim=OptimConfig(learning_rate=5e-2, weight_decay=0.1, schedule=None),
            trainer=TrainerConfig(
                name="line",
                checkpoint_dir=str(place),
                batch_size=4,
                steps=steps,
                log_every=10,
                eval_every=None,
                checkpoint_every=10,
                compilation_cache_dir=None,
            ),
            lora=LoRA(("self_attn/*", "mlp/*"), rank=4, dropout=0.1),
            sample_tokens=0,
            ema_decay=0.9,
        )

    first = train(config(10))
    return first, train(config(20)), place / "line"


@pytest.mark.slow
def test_a_run_trains_resumes_and_is_read_as_the_merged_model(run):
    first, state, directory = run
    jax.tree.map(np.testing.assert_array_equal, first.params["frozen"], state.params["frozen"])
    opened = load_run(directory)
    assert opened.config.lora == LoRA(("self_attn/*", "mlp/*"), rank=4, dropout=0.1)
    jax.tree.map(np.testing.assert_array_equal, opened.restore(), merged(state.averaged, opened.config.lora))


@pytest.mark.slow
def test_the_adapter_of_a_run_is_written_with_its_averaged_factors(run, tmp_path):
    _, state, directory = run
    write_adapter(str(directory), tmp_path)
    held = read_tensors(tmp_path / "adapter_model.safetensors")
    expected = factors_of(state.averaged)["layers_0/self_attn/q_proj"][1].T
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    np.testing.assert_array_equal(held[name], expected)
    assert np.abs(held[name]).max() > 0
