"""The language-model run's configuration and what it builds."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import tokenizers as hf

from dew.config import ModelConfig, TrainerConfig
from dew.data.mixture import DataMixture, Part
from dew.data.text import load_tokenizer
from dew.data.text.config import TextFiles
from dew.data.tokens.config import TokenWindows
from dew.objectives.lm import LMRunConfig
from dew.training import MeshSpec

pytestmark = pytest.mark.alone

BYTE = load_tokenizer("byte")


def small(**fields):
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    defaults = {
        "model": ModelConfig("causal_transformer", config=sizes, dtype="float32"),
        "data": TextFiles(seq_len=32),
        "sample_tokens": 8,
    }
    return LMRunConfig(**{**defaults, **fields})


def with_sizes(**sizes):
    config = small()
    model = dataclasses.replace(config.model, config={**config.model.config, **sizes})
    return dataclasses.replace(config, model=model)


def test_importing_and_making_a_configuration_imports_no_arrays():
    code = (
        "import sys; from dew.objectives.lm.config import LMRunConfig; "
        "LMRunConfig(); LMRunConfig.starting_point();"
        "print([name for name in ('jax', 'numpy', 'tyro', 'flax') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "config", [LMRunConfig(), LMRunConfig.starting_point(), small()], ids=["default", "preset", "small"]
)
def test_a_record_reads_back_as_the_same_configuration(config):
    assert LMRunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_the_defaults_are_those_of_the_reference():
    config = LMRunConfig()
    assert (config.optim.learning_rate, config.optim.weight_decay, config.optim.clip_grads) == (
        6e-4,
        0.1,
        1.0,
    )
    assert (config.sampling.temperature, config.sampling.top_k) == (0.8, 40)
    assert (config.objective, config.tokenizer, config.ema_decay, config.sample_tokens) == (
        "lm",
        "byte",
        0.999,
        128,
    )
    assert config.model.architecture == "causal_transformer" and config.data.seq_len == 1024


def test_the_vocabulary_and_the_length_come_from_the_tokenizer_and_the_data():
    resolved = small().resolved(BYTE)
    assert resolved.model.config["vocab_size"] == 256 and resolved.model.config["max_seq_len"] == 32
    objective = small().build()
    assert (objective.model.vocab_size, objective.seq_len, objective.pad_id) == (256, 32, None)


def test_a_resolved_configuration_resolves_to_itself():
    resolved = small().resolved(BYTE)
    assert resolved.resolved(BYTE) == resolved


def test_a_vocabulary_that_is_not_the_tokenizers_is_refused():
    with pytest.raises(ValueError, match="vocab_size=300 is not the 256 ids of tokenizer 'byte'"):
        with_sizes(vocab_size=300).build()


def test_a_model_shorter_than_the_data_is_refused():
    with pytest.raises(ValueError, match=r"max_seq_len=16 is shorter than data\.seq_len=32"):
        with_sizes(max_seq_len=16).build()


def test_rows_that_a_sequence_axis_does_not_divide_are_refused_with_lengths_that_work():
    trainer = TrainerConfig(mesh=MeshSpec(sequence=3))
    with pytest.raises(
        ValueError, match=r"data\.seq_len=32 .* mesh\.sequence=3, .*use 30 or 33, or mesh.seq.*=1"
    ):
        small(trainer=trainer).build()


def test_a_preview_longer_than_the_model_is_refused_before_training():
    with pytest.raises(ValueError, match="use at most --sample-tokens 31"):
        small(sample_tokens=32).build()


def test_an_empty_prompt_continues_a_newline_and_no_tokens_show_no_text():
    assert list(small().build().samples.prompt) == [10]
    assert list(small(sample_prompt="def ").build().samples.prompt) == list(b"def ")
    assert small(sample_tokens=0).build().samples is None


def test_a_model_field_that_does_not_exist_offers_the_one_that_does():
    with pytest.raises(TypeError, match="hidden_size"):
        with_sizes(hiden_size=16).build()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("objective", "masked_diffusion"),
        ("block_prompt_tokens", 128),
        ("block_canvas_size", 64),
    ],
)
def test_fields_without_a_function_yet_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"{field}=.* is not supported in this version"):
        small(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("balance_rate", 0.001), ("aux_loss_alpha", 0.01), ("seq_aux", False), ("router_z_loss", 0.1)],
)
def test_router_settings_of_a_model_without_experts_are_refused_at_build(field, value):
    with pytest.raises(ValueError, match=rf"{field}={value}"):
        small(**{field: value}).build()


@pytest.mark.parametrize("parts", [(), (Part(data=TextFiles()),)])
def test_a_mixture_of_fewer_than_two_is_refused_as_one(parts):
    with pytest.raises(
        ValueError, match=rf"data\.parts has {len(parts)} datasets, and a mixture two or more"
    ):
        small(data=DataMixture(parts=parts)).build()


def test_data_without_windows_is_refused():
    class Other:
        pass

    with pytest.raises(ValueError, match="data=Other has no seq_len"):
        small(data=Other()).build()


@pytest.mark.parametrize(("pad", "counts"), [("<pad>", False), ("<end>", True)])
def test_a_token_that_pads_does_not_count_unless_it_also_ends_documents(tmp_path, pad, counts):
    vocabulary = {"<end>": 0, "<pad>": 1, "a": 2}
    hf.Tokenizer(hf.models.WordLevel(vocabulary, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "pad_token": pad}))
    objective = small(tokenizer=str(tmp_path), sample_tokens=0).build()
    assert objective.pad_id == (None if counts else 1)


def test_a_preview_prompt_without_a_token_is_named(tmp_path):
    words = hf.Tokenizer(hf.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"sample_prompt='' .* set --sample-prompt"):
        small(tokenizer=str(tmp_path)).build()
    assert small(tokenizer=str(tmp_path), sample_prompt="b").build().samples.prompt == [1]


def test_a_negative_seed_of_the_data_is_named():
    for spec in (TextFiles, TokenWindows):
        with pytest.raises(ValueError, match=r"data\.seed=-1"):
            spec(seed=-1)


@pytest.mark.parametrize("field", ["dtype", "param_dtype"])
def test_float64_is_refused_where_it_would_be_float32(field):
    config = small()
    wide = dataclasses.replace(config, model=dataclasses.replace(config.model, **{field: "float64"}))
    with pytest.raises(ValueError, match=rf"model\.{field}='float64'.*JAX_ENABLE_X64"):
        wide.build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hidden_size": 64},
            r"num_heads=12 must divide hidden_size=64.* \(num_heads: left out of model\.config, .*default\)",
        ),
        ({"hidden_size": 64, "num_heads": 5}, r"num_heads=5 must divide hidden_size=64.*set head_dim$"),
        ({"hidden_size": "64"}, r"^model\.config\.hidden_size='64' must be an integer"),
        ({"sliding_layers": "all"}, "sliding_layers='all' must be a list, each true or false or null"),
        ({"rotary": {"fraction": "half"}}, r"model\.config\.rotary: fraction='half' must be a number"),
    ],
)
def test_fields_of_model_config_that_do_not_do_are_refused_with_what_was_left_out(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig("causal_transformer", {"vocab_size": 256, **fields}).build()
