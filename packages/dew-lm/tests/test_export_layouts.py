"""The folder a decoder is published as: names, shapes, values and fields that transformers declares."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors import safe_open
from safetensors.flax import load_file

from dew.interop.decoders import layout_of, save_pretrained_decoder
from dew.interop.decoders.folder import generation_config
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling

GOLDEN = json.loads((Path(__file__).parent / "golden/export_layouts.json").read_text())["cases"]
BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 96,
    "max_seq_len": 128,
    "norm_eps": 1e-2,
    "rope_theta": 20000.0,
}
PATTERN = {"sliding_window": 5, "sliding_layers": (True, False)}
CASES = {
    "llama": {},
    "llama_tied": {"tie_embeddings": True},
    "llama_geglu": {"activation": "geglu"},
    "arcee": {"activation": "relu2"},
    "mistral": {"sliding_window": 5, "head_dim": 24},
    "mistral_relu2": {"sliding_window": 5, "activation": "relu2"},
    "mistral_undivided": {"hidden_size": 66, "head_dim": 16},
    "ministral": PATTERN,
    "qwen3": {"qk_norm": True},
    "qwen3_windows": {"qk_norm": True, "activation": "relu2", **PATTERN},
}
SPELLINGS = {"torch_dtype": "dtype", "rope_theta": "rope_parameters"}
"""Fields that published files and transformers 5 spell differently; both are read."""


def drawn(case: str, **fields: object) -> tuple[CausalTransformer, dict]:
    model = CausalTransformer(**{**BASE, **CASES[case], **fields})
    return model, nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))


def saved(folder: Path, case: str, **options: object) -> tuple[dict, dict]:
    """The variables of `case` and the tensors of its one file."""
    model, variables = drawn(case)
    save_pretrained_decoder(model, variables, folder, **options)
    return variables["params"], load_file(folder / "model.safetensors")


def record(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_tensors_are_those_that_transformers_declares(tmp_path, case):
    _, tensors = saved(tmp_path, case)
    assert {name: list(value.shape) for name, value in tensors.items()} == GOLDEN[case]["tensors"]


@pytest.mark.parametrize("case", CASES)
def test_every_field_is_the_one_that_transformers_writes(tmp_path, case):
    saved(tmp_path, case)
    expected = GOLDEN[case]["config"]
    for name, value in record(tmp_path / "config.json").items():
        assert SPELLINGS.get(name, name) in expected or (name, value) in {
            ("attention_bias", False),
            ("mlp_bias", False),
        }
        if name == "rope_theta":
            assert expected["rope_parameters"] == {"rope_theta": value, "rope_type": "default"}
        elif name in expected:
            assert expected[name] == value, name


def test_every_tensor_is_its_leaf_and_kernels_are_turned(tmp_path):
    params, tensors = saved(tmp_path, "qwen3")
    layer = params["layers_1"]
    assert np.array_equal(tensors["model.embed_tokens.weight"], params["embed_tokens"]["embedding"])
    assert np.array_equal(tensors["lm_head.weight"], params["lm_head"]["kernel"].T)
    for block, names in {"self_attn": "q k v o", "mlp": "gate up down"}.items():
        for each in (f"{name}_proj" for name in names.split()):
            written = tensors[f"model.layers.1.{block}.{each}.weight"]
            assert np.array_equal(written, layer[block][each]["kernel"].T), each


def test_norms_are_told_apart(tmp_path):
    model, variables = drawn("qwen3")
    norms = {"input_layernorm": 2.0, "post_attention_layernorm": 3.0}
    layer = variables["params"]["layers_2"]
    for name, value in norms.items():
        layer[name]["scale"] = jnp.full(64, value)
    layer["self_attn"]["q_norm"]["scale"] = jnp.full(16, 4.0)
    save_pretrained_decoder(model, variables, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, value in {**norms, "self_attn.q_norm": 4.0, "self_attn.k_norm": 1.0}.items():
        assert np.all(tensors[f"model.layers.2.{name}.weight"] == value), name


def test_squared_relu_is_a_relu_gate_with_the_up_projection_in_both_places(tmp_path):
    params, tensors = saved(tmp_path, "mistral_relu2")
    up = params["layers_0"]["mlp"]["up_proj"]["kernel"].T
    for name in ("gate_proj", "up_proj"):
        assert np.array_equal(tensors[f"model.layers.0.mlp.{name}.weight"], up)
    z = up @ jax.random.normal(jax.random.key(1), (64,))
    assert np.array_equal(jax.nn.relu(z) * z, jax.nn.relu(z) ** 2)


def test_files_stay_below_the_limit_and_the_index_finds_every_tensor(tmp_path):
    _, whole = saved(tmp_path / "whole", "llama")
    model, variables = drawn("llama")
    save_pretrained_decoder(model, variables, tmp_path / "parts", max_shard_bytes=40_000)
    index = record(tmp_path / "parts/model.safetensors.index.json")
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    files = sorted(path.name for path in (tmp_path / "parts").glob("*.safetensors"))
    assert files == [f"model-{number + 1:05}-of-{len(files):05}.safetensors" for number in range(len(files))]
    assert len(files) > 3 and set(index["weight_map"].values()) == set(files)
    for name, file in index["weight_map"].items():
        assert np.array_equal(load_file(tmp_path / "parts" / file)[name], whole[name])
    sizes = [[value.nbytes for value in load_file(tmp_path / "parts" / file).values()] for file in files]
    assert all(sum(each) <= 40_000 for each in sizes)
    assert all(sum(one) + max(other) > 40_000 for one, other in itertools.pairwise(sizes)), "half-empty files"


def test_file_names_its_framework_as_transformers_asks(tmp_path):
    saved(tmp_path, "llama")
    with safe_open(tmp_path / "model.safetensors", "flax") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_tensors_keep_their_bits_and_the_configuration_says_so(tmp_path, dtype):
    model, variables = drawn("llama")
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), variables)
    save_pretrained_decoder(model, narrow, tmp_path)
    written = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert written.dtype == dtype
    assert np.array_equal(written, narrow["params"]["lm_head"]["kernel"].T)
    assert record(tmp_path / "config.json")["torch_dtype"] == dtype


@pytest.mark.parametrize("field", ["attn_logit_softcap", "final_logit_softcap"])
def test_bounded_scores_are_refused_by_the_name_of_their_field(field):
    model = CausalTransformer(**BASE, **{field: 30.0})
    with pytest.raises(
        ValueError, match=rf"{field}=30.0 has no published layout.*closest, llama.*without it"
    ):
        layout_of(model)


def test_another_model_is_refused_by_its_class():
    with pytest.raises(ValueError, match="model Dense has no published layout; causal_transformer has one"):
        layout_of(nn.Dense(3))


def test_leaf_without_a_published_name_is_refused_before_anything_is_written(tmp_path):
    model, variables = drawn("llama")
    variables["params"]["adapter"] = {"kernel": jnp.zeros((2, 2))}
    with pytest.raises(ValueError, match="variables hold params/adapter/kernel, which the model lacks"):
        save_pretrained_decoder(model, variables, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_leaf_of_another_shape_is_refused(tmp_path):
    model, variables = drawn("llama")
    variables["params"]["norm"]["scale"] = jnp.ones(32)
    with pytest.raises(ValueError, match=r"params/norm/scale of shape \(32,\), and the model has \(64,\)"):
        save_pretrained_decoder(model, variables, tmp_path / "new")


def test_missing_leaf_is_refused(tmp_path):
    model, variables = drawn("llama")
    del variables["params"]["layers_1"]["mlp"]["gate_proj"]
    with pytest.raises(ValueError, match=r"variables lack params/layers_1/mlp/gate_proj/kernel"):
        save_pretrained_decoder(model, variables, tmp_path / "new")


def test_full_folder_is_left_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match="holds files; give an empty or a new folder"):
        saved(tmp_path, "llama")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


POLICIES = [
    (Sampling(temperature=0), {"do_sample": False}),
    (Sampling(), {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}),
    (
        Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1),
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
    ),
]


@pytest.mark.parametrize(("policy", "drawn"), POLICIES)
def test_policy_is_stated_where_the_reader_has_defaults_of_its_own(policy, drawn):
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    assert generation_config(policy) == {**drawn, **ids}


@pytest.mark.parametrize(("ends", "stated"), [(3, 3), ((3, 4), [3, 4])])
def test_end_tokens_and_length_are_stated(ends, stated):
    told = generation_config(Sampling(eos_id=ends, pad_id=9), 12)
    assert (told["eos_token_id"], told["pad_token_id"], told["max_new_tokens"]) == (stated, 9, 12)
