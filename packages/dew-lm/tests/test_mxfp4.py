"""Experts packed as MXFP4: bytes by hand, a packed folder as its floats, and what is refused."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dew.interop import load_pretrained
from dew.interop.decoders.mxfp4 import values_of

CONFIG = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "rope_scaling": {"rope_type": "default"},
    "quantization_config": {"quant_method": "mxfp4"},
}


def packed_experts():
    draw = np.random.default_rng(0)
    shapes = {"gate_up_proj": (2, 64, 1), "down_proj": (2, 32, 1)}
    found = {}
    for name, shape in shapes.items():
        path = f"model.layers.0.mlp.experts.{name}"
        found[f"{path}_blocks"] = draw.integers(0, 256, (*shape, 16), dtype=np.uint8)
        found[f"{path}_scales"] = draw.integers(118, 130, shape, dtype=np.uint8)
    return found


def plain_tensors():
    attention = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    shapes = {
        "model.embed_tokens.weight": (16, 32),
        "model.norm.weight": (32,),
        "lm_head.weight": (16, 32),
        "model.layers.0.input_layernorm.weight": (32,),
        "model.layers.0.post_attention_layernorm.weight": (32,),
        "model.layers.0.self_attn.sinks": (2,),
        "model.layers.0.mlp.router.weight": (2, 32),
        "model.layers.0.mlp.router.bias": (2,),
        "model.layers.0.mlp.experts.gate_up_proj_bias": (2, 64),
        "model.layers.0.mlp.experts.down_proj_bias": (2, 32),
    }
    for name, shape in attention.items():
        shapes[f"model.layers.0.self_attn.{name}.weight"] = shape
        shapes[f"model.layers.0.self_attn.{name}.bias"] = shape[:1]
    draw = np.random.default_rng(1)
    return {name: draw.standard_normal(shape).astype(jnp.bfloat16) for name, shape in shapes.items()}


def folder(where, tensors, **changed):
    where.mkdir(exist_ok=True)
    (where / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    save_file(tensors, where / "model.safetensors")
    return where


def test_nibbles_are_signed_magnitudes_the_low_half_first():
    blocks = np.zeros((1, 2, 1, 16), np.uint8)
    blocks[0, 0, 0, :3] = [0x21, 0xF7, 0x8C]
    scales = np.array([[[127], [126]]], np.uint8)
    blocks[0, 1, 0, 0] = 0x76
    values = values_of(blocks, scales)
    assert values.shape == (1, 32, 2)
    np.testing.assert_array_equal(values[0, :6, 0], [0.5, 1.0, 6.0, -6.0, -2.0, -0.0])
    np.testing.assert_array_equal(values[0, :3, 1], [2.0, 3.0, 0.0])


def test_groups_of_thirty_two_have_scales_of_their_own_and_255_is_no_number():
    blocks = np.full((1, 1, 3, 16), 0x22, np.uint8)
    values = values_of(blocks, np.array([[[127, 130, 255]]], np.uint8))[0, :, 0]
    np.testing.assert_array_equal(values[:64], [1.0] * 32 + [8.0] * 32)
    assert np.isnan(values[64:]).all()


def test_a_packed_folder_is_read_as_its_floats_and_saved_as_floats(tmp_path):
    packed = packed_experts()
    source = load_pretrained(folder(tmp_path / "packed", {**plain_tensors(), **packed}), param_dtype="auto")
    floats = dict(plain_tensors())
    for name in ("gate_up_proj", "down_proj"):
        path = f"model.layers.0.mlp.experts.{name}"
        wide = values_of(packed[f"{path}_blocks"], packed[f"{path}_scales"])
        floats[path] = np.ascontiguousarray(wide).astype(jnp.bfloat16)
        np.testing.assert_array_equal(floats[path].astype(np.float32), wide)
    plain = load_pretrained(folder(tmp_path / "plain", floats, quantization_config=None), param_dtype="auto")
    jax.tree.map(np.testing.assert_array_equal, source.variables, plain.variables)
    source.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    assert saved.keys() == floats.keys()
    for name, value in floats.items():
        assert saved[name].dtype == jnp.bfloat16 and np.array_equal(saved[name], value), name
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())


@pytest.mark.oracle
def test_values_are_those_of_transformers_live():
    pytest.importorskip("transformers")
    import torch
    from transformers.integrations import mxfp4

    for name, blocks in packed_experts().items():
        if name.endswith("_blocks"):
            scales = packed_experts()[name.replace("_blocks", "_scales")]
            theirs = mxfp4.convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
            np.testing.assert_array_equal(values_of(blocks, scales), theirs.float().numpy())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quant_method='fp8': only weights of 'mxfp4'"),
        ({"quantization_config": None}, r"model.layers.0.mlp.experts.down_proj"),
    ],
)
def test_other_packings_are_refused_by_name(change, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        load_pretrained(folder(tmp_path, {**plain_tensors(), **packed_experts()}, **change))


def test_blocks_without_scales_or_of_other_groups_are_refused(tmp_path):
    packed = packed_experts()
    path = "model.layers.0.mlp.experts.down_proj"
    scales = packed.pop(f"{path}_scales")
    with pytest.raises(ValueError, match=f"lacks the tensor {path}_scales"):
        load_pretrained(folder(tmp_path / "without", {**plain_tensors(), **packed}))
    packed[f"{path}_scales"] = np.concatenate([scales, scales], axis=-1)
    with pytest.raises(ValueError, match=r"U8\[2, 32, 1, 16\] with scales U8\[2, 32, 2\]"):
        load_pretrained(folder(tmp_path / "other", {**plain_tensors(), **packed}))
