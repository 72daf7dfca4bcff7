"""Adapters as PEFT's folders: what comes back, and what is refused."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from dew.lora import LoRA, load_adapter, save_adapter
from dew.lora.tensor_file import read_tensors, write_tensors

RECORD = LoRA(("/layers_0/q",), rank=2, alpha=6.0, rslora=True, dropout=0.125)
FACTORS = {"layers_0/q": (jnp.arange(6.0).reshape(3, 2), jnp.arange(8.0).reshape(2, 4))}


@pytest.fixture
def folder(tmp_path):
    save_adapter(tmp_path / "adapter", FACTORS, RECORD, base="there", task_type="CAUSAL_LM")
    return tmp_path / "adapter"


def altered(folder, **fields):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_record_and_factors_come_back(folder):
    lora, factors = load_adapter(folder)
    assert lora == RECORD
    for one, two in zip(factors["layers_0/q"], FACTORS["layers_0/q"], strict=True):
        np.testing.assert_array_equal(one, two)


def test_tensors_have_pytorch_names_and_orientation(folder):
    tensors = read_tensors(folder / "adapter_model.safetensors")
    prefix = "base_model.model.layers_0.q"
    np.testing.assert_array_equal(tensors[f"{prefix}.lora_A.weight"], [[0, 2, 4], [1, 3, 5]])
    assert tensors[f"{prefix}.lora_B.weight"].shape == (4, 2)


def test_half_precision_comes_back_bit_for_bit(tmp_path):
    values = {"a": np.asarray(jnp.arange(5, dtype=jnp.bfloat16) / 3), "b": np.zeros((0, 3), "f2")}
    write_tensors(tmp_path / "t", values)
    found = read_tensors(tmp_path / "t")
    assert {name: (v.dtype, v.shape, v.tobytes()) for name, v in found.items()} == {
        name: (v.dtype, v.shape, v.tobytes()) for name, v in values.items()
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"rank_pattern": {"q": 4}}, "rank_pattern="),
        ({"bias": "all"}, "bias='all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"some_new_option": 1}, "some_new_option=1"),
        ({"r": 3}, r"r=3 needs A \[r, in\]"),
        ({"lora_alpha": "x"}, "lora_alpha='x' must be a number"),
    ],
)
def test_adapters_that_are_not_plain_are_refused_by_the_field(folder, fields, message):
    altered(folder, **fields)
    with pytest.raises(ValueError, match=message):
        load_adapter(folder)


def test_other_tensors_are_refused_and_copies_of_the_base_are_not_read(folder):
    path = folder / "adapter_model.safetensors"
    tensors = read_tensors(path)
    write_tensors(path, {**tensors, "base_model.model.head.base_layer.weight": np.ones((2, 2), "f4")})
    assert list(load_adapter(folder)[1]) == ["layers_0/q"]
    write_tensors(path, {**tensors, "base_model.model.q.lora_magnitude_vector": np.ones(2, "f4")})
    with pytest.raises(ValueError, match="lora_magnitude_vector, which is no factor"):
        load_adapter(folder)


def header(entry):
    text = json.dumps({"t": entry}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "header is longer than the file"),
        ((1 << 60).to_bytes(8, "little"), "header is longer than the file"),
        ((2).to_bytes(8, "little") + b"{x", "is no JSON"),
        (header({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}), r"the range \[0, 8\]"),
        (header({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(8), "is not that of"),
        (header({"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}) + bytes(8), "is not that of"),
        (header({"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}) + bytes(8), "stored as 'I64'"),
        (header([1]), "lacks dtype, shape or range"),
    ],
)
def test_files_that_lie_are_refused_before_an_array_is_made(tmp_path, content, message):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_tensors(tmp_path / "t")


def test_an_adapter_is_not_written_over(folder):
    with pytest.raises(FileExistsError, match="give a folder without an adapter"):
        save_adapter(folder, FACTORS, RECORD)


def test_wrong_rank_or_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"rank 2, and lora\.rank=3"):
        save_adapter(tmp_path, FACTORS, LoRA(("q",), rank=3))
    with pytest.raises(ValueError, match="hold no adapter"):
        save_adapter(tmp_path, {}, RECORD)
