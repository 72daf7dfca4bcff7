"""Published decoders read back: every layout that is written, and what is refused by name."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from dew.interop import load_pretrained, save_pretrained_decoder
from dew.interop.decoders.catalogue import family_of
from dew.interop.decoders.translation import model_of
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.registry import UnknownComponent

BASE = dict(
    vocab_size=13,
    hidden_size=16,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=24,
    max_seq_len=32,
)
PATTERN = {"sliding_window": 5, "sliding_layers": (True, False)}
CASES = {
    "llama": {},
    "llama_tied": {"tie_embeddings": True, "rope_theta": 500.0, "norm_eps": 1e-3},
    "llama_geglu": {"activation": "geglu"},
    "arcee": {"activation": "relu2"},
    "mistral": {"sliding_window": 5, "head_dim": 6},
    "mistral_relu2": {"sliding_window": 5, "activation": "relu2"},
    "ministral": PATTERN,
    "qwen3": {"qk_norm": True},
    "qwen3_windows": {"qk_norm": True, "activation": "relu2", **PATTERN},
}
TOKENS = jnp.arange(20).reshape(2, 10) % 13


def written(folder, case="llama", **options):
    model = CausalTransformer(**{**BASE, **CASES[case]})
    variables = nn.unbox(model.init(jax.random.key(0), TOKENS))
    save_pretrained_decoder(model, variables, folder, **options)
    return model, variables


def edited(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_as_the_same_model(tmp_path, case):
    model, variables = written(tmp_path, case)
    source = load_pretrained(tmp_path)
    assert jax.tree.all(jax.tree.map(np.array_equal, source.variables, variables))
    expected = model.apply(variables, TOKENS)
    np.testing.assert_array_equal(source.model.apply(source.variables, TOKENS), expected)


def test_tensors_in_several_files_are_found_by_their_index(tmp_path):
    _, variables = written(tmp_path, max_shard_bytes=3000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert jax.tree.all(jax.tree.map(np.array_equal, load_pretrained(tmp_path).variables, variables))


def test_dtypes_are_float32_unless_asked_for(tmp_path):
    model = CausalTransformer(**BASE, param_dtype=jnp.bfloat16)
    save_pretrained_decoder(model, nn.unbox(model.init(jax.random.key(0), TOKENS)), tmp_path)

    def dtypes(source):
        return source.model.dtype, {leaf.dtype for leaf in jax.tree.leaves(source.variables)}

    assert dtypes(load_pretrained(tmp_path)) == (jnp.float32, {jnp.dtype("float32")})
    auto = load_pretrained(tmp_path, dtype="auto", param_dtype="auto")
    assert dtypes(auto) == (jnp.bfloat16, {jnp.dtype("bfloat16")})
    assert dtypes(load_pretrained(tmp_path, dtype="float16"))[0] == jnp.float16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary scaling yarn needs factor"),
        ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "rope_scaling of type 'su' is not computed"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "holds beta, which linear"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1.0}},
            "rope_scaling=.* and rope_parameters=.* differ",
        ),
        ({"attention_bias": True}, "lacks the tensor model.layers.0.self_attn.k_proj.bias"),
        ({"hidden_act": "mish"}, "hidden_act='mish' is not computed here; silu, gelu_pytorch_tanh"),
        ({"residual_multiplier": 0.2}, "residual_multiplier=0.2: llama is read without such a field"),
        ({"pretraining_tp": 2}, "pretraining_tp=2: this decoder computes 1 alone"),
        ({"quantization_config": {"bits": 4}}, "quantization_config=.*: llama is read without such a field"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM alone is read"),
        ({"sliding_window": 4}, "sliding_window=4: llama is read without such a field"),
        ({"num_hidden_layers": 4}, "lacks the tensor model.layers.3"),
        ({"num_hidden_layers": 2}, "holds the tensor model.layers.2"),
        ({"intermediate_size": 32}, r"mlp.down_proj.weight has shape \(16, 24\).*\(16, 32\)"),
    ],
)
def test_what_this_decoder_does_not_compute_is_refused_by_name(tmp_path, fields, message):
    written(tmp_path)
    edited(tmp_path, **fields)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


QWEN = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": None,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "sliding_window": 8,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"use_sliding_window": True}, {}),
        (
            {"use_sliding_window": True, "max_window_layers": 2},
            {"sliding_window": 8, "sliding_layers": (False, False, True, True)},
        ),
        ({"use_sliding_window": True, "max_window_layers": 0}, {"sliding_window": 8}),
        ({"model_type": "mistral", "max_window_layers": None}, {"sliding_window": 8}),
    ],
)
def test_the_layers_with_a_window_are_those_of_the_family(fields, expected):
    """As transformers' `Qwen3Config` and `MistralConfig` fill their `layer_types`."""
    model = read({**QWEN, **fields})
    found = {"sliding_window": model.sliding_window, "sliding_layers": model.sliding_layers}
    assert {name: value for name, value in found.items() if value is not None} == expected


def read(config):
    return model_of(family_of(config["model_type"]), config, dtype=jnp.float32, param_dtype=jnp.float32)


def test_layers_and_rotations_of_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="layer_types names chunked_attention"):
        read({**QWEN, "layer_types": ["chunked_attention", "full_attention"] * 2})
    with pytest.raises(ValueError, match="layer_types names 2 layers, and num_hidden_layers is 4"):
        read({**QWEN, "layer_types": ["full_attention"] * 2})
    with pytest.raises(ValueError, match="rope_parameters holds partial_rotary_factor"):
        read({**QWEN, "rope_theta": None, "rope_parameters": {"partial_rotary_factor": 0.5}})


def test_a_gate_that_is_not_the_projection_it_gates_is_refused(tmp_path):
    written(tmp_path, "mistral_relu2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.gate_proj.weight"] = tensors["model.layers.1.mlp.gate_proj.weight"] + 1
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp.*differs from the projection that it gates"):
        load_pretrained(tmp_path)


def test_folders_that_are_none_or_of_another_kind_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder; this version reads local folders"):
        load_pretrained("meta-llama/Llama-3.2-1B")
    with pytest.raises(FileNotFoundError, match=r"neither config\.json nor model_index\.json"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UnknownComponent, match=r"no reader is named 'mamba'.*llama"):
        load_pretrained(tmp_path)


def test_an_index_may_not_lead_out_of_its_folder(tmp_path):
    written(tmp_path, max_shard_bytes=3000)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(
        ValueError, match=r"'\.\./elsewhere\.safetensors', which is no safetensors file of the folder"
    ):
        load_pretrained(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    written(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="is no whole safetensors file"):
        load_pretrained(tmp_path)
