"""The two ways in which files hold experts, and configurations of mixtures that are refused."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from dew.interop import load_pretrained
from dew.interop.decoders.catalogue import family_of, layout_of
from dew.interop.decoders.tensors import published
from dew.interop.decoders.translation import model_of
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture, SharedExpert
from dew.nn.sharding import unboxed

SIZES = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_layers": 2, "num_heads": 2}
MODELS = {
    "mixtral": {"mixture": Mixture(num_experts=3, top_k=2)},
    "qwen3_moe": {
        "mixture": Mixture(num_experts=3, top_k=2, intermediate_size=6, layers=(True, False)),
        "qk_norm": True,
    },
}


def drawn(name):
    model = CausalTransformer(**SIZES, max_seq_len=16, **MODELS[name])
    variables = unboxed(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    return model, variables


def written(name, where, tensors):
    model, _ = drawn(name)
    where.mkdir()
    (where / "config.json").write_text(json.dumps(dict(layout_of(model, name).fields)))
    save_file(tensors, where / "model.safetensors")
    return where


@pytest.mark.parametrize("name", MODELS)
def test_experts_apart_and_experts_stacked_are_read_alike(name, tmp_path):
    model, variables = drawn(name)
    apart = {each.name: each.fetch() for each in published(model, variables, layout_of(model, name))}
    stacked = {
        each.replace("block_sparse_moe", "mlp"): value
        for each, value in apart.items()
        if ".experts." not in each
    }
    gate, up, down = ("w1", "w3", "w2") if name == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    block = "block_sparse_moe" if name == "mixtral" else "mlp"
    for layer in (layer for layer in range(2) if model.mixture.at(layer)):
        of = [
            {
                part: apart[f"model.layers.{layer}.{block}.experts.{expert}.{part}.weight"]
                for part in (gate, up, down)
            }
            for expert in range(3)
        ]
        path = f"model.layers.{layer}.mlp.experts"
        stacked[f"{path}.gate_up_proj"] = np.stack([np.concatenate([each[gate], each[up]]) for each in of])
        stacked[f"{path}.down_proj"] = np.stack([each[down] for each in of])
    one = load_pretrained(written(name, tmp_path / "apart", apart))
    other = load_pretrained(written(name, tmp_path / "stacked", stacked))
    jax.tree.map(np.testing.assert_array_equal, one.variables, variables)
    jax.tree.map(np.testing.assert_array_equal, other.variables, variables)


def test_a_mixture_is_written_by_the_family_that_can_tell_it():
    assert {name: layout_of(drawn(name)[0]).model_type for name in MODELS} == {name: name for name in MODELS}


def test_a_mixture_that_no_family_tells_is_refused_by_its_field():
    model = CausalTransformer(**SIZES, mixture=Mixture(num_experts=3, top_k=2, scale=2.0))
    with pytest.raises(ValueError, match=r"mixture=Mixture\(.*has no published layout"):
        layout_of(model)


@pytest.mark.parametrize(
    ("family", "changed", "named"),
    [
        ("mixtral", {"num_experts": 4}, "num_experts=4 and num_local_experts=3 differ"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok=9 is above num_local_experts=3"),
        ("mixtral", {"hidden_act": "relu"}, "hidden_act='relu' is not computed"),
        ("qwen3_moe", {"decoder_sparse_step": 3}, "puts experts in no layer"),
    ],
)
def test_files_that_contradict_themselves_are_refused(family, changed, named):
    config = {**layout_of(drawn(family)[0], family).fields, **changed}
    with pytest.raises(ValueError, match=named):
        model_of(family_of(family), config, dtype=jnp.float32, param_dtype=jnp.float32)


def test_selection_biases_stay_float32_whatever_the_parameters_are(tmp_path):
    mixture = Mixture(
        num_experts=4,
        top_k=2,
        scores="sigmoid",
        bias=True,
        intermediate_size=6,
        shared=SharedExpert(intermediate_size=6),
    )
    model = CausalTransformer(**SIZES, max_seq_len=16, mixture=mixture)
    variables = unboxed(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    layout = layout_of(model, "glm4_moe")
    tmp_path.joinpath("config.json").write_text(json.dumps(dict(layout.fields)))
    tensors = {each.name: each.fetch() for each in published(model, variables, layout)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = load_pretrained(tmp_path, param_dtype="bfloat16").variables
    assert {leaf.dtype for leaf in jax.tree.leaves(found["moe"])} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(found["params"])} == {jnp.dtype("bfloat16")}
