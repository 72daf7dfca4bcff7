"""Published decoders read back: every layout that is written, and what is refused by name."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from dew.data.text import ByteTokenizer
from dew.interop import load_pretrained, save_pretrained_decoder
from dew.interop.decoders.catalogue import family_of
from dew.interop.decoders.finite import all_finite
from dew.interop.decoders.kinds import KINDS
from dew.interop.decoders.names import MODEL_TYPES
from dew.interop.decoders.stored import StoredTensor
from dew.interop.decoders.translation import computed, config_of, model_of
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Biases, Temperature
from dew.registry import UnknownComponent
from dew.sampling import Sampling

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


def test_weights_that_were_widened_are_saved_in_the_dtype_they_came_in(tmp_path):
    model = CausalTransformer(**BASE, param_dtype=jnp.bfloat16)
    save_pretrained_decoder(model, nn.unbox(model.init(jax.random.key(0), TOKENS)), tmp_path / "one")
    source = load_pretrained(tmp_path / "one")
    source.save(tmp_path / "two")
    files = [(tmp_path / each / "model.safetensors").read_bytes() for each in ("one", "two")]
    assert files[0] == files[1]
    source.save(tmp_path / "three", variables=source.variables)
    assert {each.dtype.name for each in load_file(tmp_path / "three/model.safetensors").values()} == {
        "float32"
    }


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16}


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
        ({"rope_interleaved": True}, "rope_interleaved=True: this decoder computes False alone"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quant_method='awq': quantized weights of this kind are not read; take .*unquantized",
        ),
        ({"quantization_config": "awq"}, "quantization_config='awq' must be an object of fields"),
        (
            {"vision": 1},
            r".*/test_what.*: config.json vision=1: llama is .*; remove it if it changes nothing",
        ),
        ({"hidden_size": "16"}, "config.json hidden_size='16' must be an integer of at least 1"),
        ({"hidden_size": 16.0}, r"config.json hidden_size=16\.0 must be an integer of at least 1"),
        ({"num_attention_heads": 0}, "config.json num_attention_heads=0 must be an integer of at least 1"),
        ({"num_attention_heads": 6, "head_dim": None}, "num_attention_heads=6 must divide hidden_size=16"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan must be a finite number"),
        ({"rms_norm_eps": -1.0}, "config.json: rms_norm_eps=-1.0 must be a finite number above 0"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
            "config.json: rotary scaling low_freq_factor=4.0 must not be above high_freq_factor=1.0",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": -3}},
            "config.json: rotary scaling beta_fast=-3 must be a finite number above 0",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1.0},
            "config.json: rope_theta=1.0 must be above 1 with a rotary scaling of kind yarn",
        ),
        ({"rope_theta": float("inf")}, "rope_theta=inf must be a finite number above 0"),
        ({"tie_word_embeddings": "true"}, "tie_word_embeddings='true' must be true or false"),
        ({"hidden_act": None}, "hidden_act=None must be a string"),
        ({"architectures": 3}, "architectures=3 must be a list of strings"),
        ({"rope_parameters": [1]}, r"rope_parameters=\[1\] must be an object of fields"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": "2"}},
            r"rope_parameters\.factor='2' must be a finite number above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1}},
            "rope_parameters holds beta, which linear",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}},
            "rotary scaling llama3 needs high_freq_factor; .*original_max_position_embeddings",
        ),
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


COHERE = {
    **{name: value for name, value in QWEN.items() if name != "rms_norm_eps"},
    "model_type": "cohere2",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@pytest.mark.parametrize(("window", "turned"), [(8, (True, False) * 2), (None, (False,) * 4)])
def test_layers_of_cohere_turn_where_they_have_a_window(window, turned):
    """As `Cohere2Attention` does, whose window is the configuration's in its sliding layers."""
    model = read({**COHERE, "sliding_window": window})
    assert tuple(plan.angles is not None for plan in model.plans) == turned


SCOUT = {
    **{name: value for name, value in QWEN.items() if not name.endswith(("window", "window_layers"))},
    "model_type": "llama4_text",
    "intermediate_size_mlp": 48,
    "num_local_experts": 4,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"size": 8192, "chunks": (1, 1, 1, 0), "turned": (1, 1, 1, 0), "experts": (1, 1, 1, 1)}),
        (
            {"no_rope_layers": [], "no_rope_layer_interval": 2},
            {"chunks": (1, 0, 1, 0), "turned": (1, 0, 1, 0)},
        ),
        ({"no_rope_layers": [1, 0, 1, 1, 0, 1]}, {"turned": (1, 0, 1, 1)}),
        ({"no_rope_layers": [0] * 4}, {"norm": False, "chunks": (0,) * 4, "size": None}),
        ({"no_rope_layers": [1] * 4}, {"temperature": None, "turned": (1,) * 4}),
        ({"use_qk_norm": False, "attn_temperature_tuning": False}, {"norm": False, "temperature": None}),
        # Older files say how often, in place of whether.
        ({"attn_temperature_tuning": 4}, {"temperature": Temperature()}),
        ({"interleave_moe_layer_step": 2}, {"experts": (0, 1, 0, 1)}),
        ({"moe_layers": [2], "interleave_moe_layer_step": 2}, {"experts": (0, 0, 1, 0)}),
        ({"moe_layers": []}, {"experts": (0,) * 4}),
    ],
)
def test_the_layers_of_llama_4_are_those_that_its_files_mean(fields, expected):
    """As transformers' `Llama4TextConfig` fills what a file leaves out."""
    model = read({**SCOUT, **fields})
    found = {
        "size": model.attention_chunk_size,
        "chunks": tuple(plan.chunk is not None for plan in model.plans),
        "turned": tuple(plan.angles is not None for plan in model.plans),
        "experts": tuple(plan.experts for plan in model.plans),
        "norm": model.qk_norm,
        "temperature": model.attention_temperature,
    }
    assert {name: found[name] for name in expected} == expected
    assert computed(read(config_of(family_of("llama4_text"), model))) == computed(model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers names 2 layers, fewer than there are"),
        (
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types names sliding_attention; chunked_attention",
        ),
        ({"attention_chunk_size": None}, "attention_chunk_size=None: layers with chunked_attention need"),
        ({"for_llm_compressor": True}, "for_llm_compressor=True: this decoder computes False alone"),
    ],
)
def test_layers_that_llama_4_does_not_have_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        read({**SCOUT, **fields})


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_the_kind_of_every_field_that_is_read_is_known(name):
    assert set(family_of(name).read_fields) <= set(KINDS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts_per_tok": 9, "num_experts": 4}, "num_experts_per_tok=9 is above num_experts=4"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size=0 must be an integer of at least 1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0 must be an integer of at least 1"),
        ({"mlp_only_layers": 1}, "mlp_only_layers=1 must be a list of integers"),
        ({"num_experts": 0}, "num_experts=0 must be at least 1"),
    ],
)
def test_a_mixture_is_refused_in_the_names_of_its_file(fields, message):
    with pytest.raises(ValueError, match=rf"^config\.json.*{message}"):
        read({**QWEN, "model_type": "qwen3_moe", "num_key_value_heads": 4, **fields})


GEMMA3 = {**QWEN, "model_type": "gemma3_text"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**GEMMA3, "final_logit_softcapping": 0}, "final_logit_softcapping=0 must be a finite number above"),
        ({**GEMMA3, "model_type": "gemma2", "attn_logit_softcapping": -5.0}, "attn_logit_softcapping=-5.0 "),
        ({**QWEN, "model_type": "granite", "residual_multiplier": 0.0}, "residual_multiplier=0.0 must be a"),
        ({**QWEN, "model_type": "cohere2", "layer_norm_eps": 0.0}, "layer_norm_eps=0.0 must be a finite num"),
        ({**QWEN, "model_type": "gpt_oss", "swiglu_limit": -1}, "swiglu_limit=-1.0 must be a finite number"),
        ({**QWEN, "model_type": "phi3", "partial_rotary_factor": 0.0}, "must lie in"),
        (
            {**QWEN, "model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.0}},
            "must lie in",
        ),
    ],
)
def test_a_number_out_of_range_is_refused_in_the_name_of_its_file(fields, message):
    known = {*family_of(fields["model_type"]).read_fields, "model_type"}
    fields = {name: value for name, value in fields.items() if name in known}
    with pytest.raises(ValueError, match=rf"^config\.json.*{message}"):
        read(fields)


def test_layers_and_rotations_of_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="layer_types names chunked_attention"):
        read({**QWEN, "layer_types": ["chunked_attention", "full_attention"] * 2})
    with pytest.raises(ValueError, match="layer_types names 2 layers, and num_hidden_layers is 4"):
        read({**QWEN, "layer_types": ["full_attention"] * 2})
    with pytest.raises(ValueError, match="rope_parameters holds partial_rotary_factor"):
        read({**QWEN, "rope_theta": None, "rope_parameters": {"partial_rotary_factor": 0.5}})


LLAMA4 = {**QWEN, "model_type": "llama4_text", "num_key_value_heads": 4}
SLID = {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({**QWEN, "use_sliding_window": True}, "max_window_layers"),
        ({**QWEN, "model_type": "qwen2_moe", "use_sliding_window": True}, "max_window_layers"),
        (LLAMA4, "attn_scale"),
        (LLAMA4, "floor_scale"),
        (LLAMA4, "interleave_moe_layer_step"),
        ({**LLAMA4, "intermediate_size": 8192}, "intermediate_size"),
    ],
)
def test_a_null_is_as_if_the_field_were_not_there(fields, name):
    fields = {**fields, "num_key_value_heads": 4}
    known = {*family_of(fields["model_type"]).read_fields, "model_type"}
    fields = {each: value for each, value in fields.items() if each in known}
    absent = {each: value for each, value in fields.items() if each != name}
    assert computed(read({**fields, name: None})) == computed(read(absent))


def test_a_null_beside_the_rotations_of_gemma_3_counts_for_nothing():
    by_kind = {"sliding_attention": SLID, "rope_theta": None}
    fields = {name: value for name, value in GEMMA3.items() if name not in ("hidden_act", "rope_theta")}
    model = read({**fields, "layer_types": ["sliding_attention"] * 4, "rope_parameters": by_kind})
    assert model.rotary.local_theta == 500.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight_map": []}', r"weight_map=\[\]; it must hold an object weight_map"),
        ("{}", "weight_map=None; it must hold an object weight_map"),
        ("[]", r"holds \[\]; it must hold an object weight_map"),
        ("{", r"index\.json is no JSON"),
        ('{"weight_map": {"a": 5}}', r"weight_map\.a=5 must be the name of a file"),
    ],
)
def test_an_index_that_names_no_files_is_refused_by_what_it_holds(tmp_path, text, message):
    written(tmp_path, max_shard_bytes=3000)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_every_dtype(dtype, value):
    numbers = np.asarray(jnp.finfo(jnp.dtype(dtype)).max, jnp.dtype(dtype)) * np.ones(
        (3, 5), jnp.dtype(dtype)
    )
    assert all_finite(numbers) and all_finite(-numbers.T)
    numbers[2, 3] = value
    assert not all_finite(numbers) and not all_finite(numbers.T) and not all_finite(numbers[1:, 1:4])


@pytest.mark.parametrize("value", [np.nan, 1e300])
def test_a_tensor_that_is_not_finite_is_named_in_a_warning(tmp_path, value):
    written(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = np.full(16, value, np.float64)
    save_file(tensors, path)
    with pytest.warns(UserWarning, match=r"infinite numbers stand in model\.norm\.weight as float32; "):
        load_pretrained(tmp_path)


def test_a_gate_that_is_not_the_projection_it_gates_is_refused(tmp_path):
    written(tmp_path, "mistral_relu2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.gate_proj.weight"] = tensors["model.layers.1.mlp.gate_proj.weight"] + 1
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp.*differs from the projection that it gates"):
        load_pretrained(tmp_path)


def test_folders_that_are_none_or_of_another_kind_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="/nowhere is no folder, and not the name of a repository"):
        load_pretrained("/nowhere")
    with pytest.raises(FileNotFoundError, match="owner/name is no folder"):
        load_pretrained(tmp_path.relative_to(tmp_path) / "owner/name")
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


class FakeHub(ModuleType):
    """Stands in for huggingface_hub: serves one folder, and notes what it was asked for."""

    def __init__(self, folder, revisions=("main",)):
        super().__init__("huggingface_hub")
        self.asked = []

        def snapshot_download(repository, *, revision, allow_patterns, ignore_patterns):
            self.asked.append((repository, revision, allow_patterns, ignore_patterns))
            if (revision or "main") not in revisions:
                raise self.errors.HfHubHTTPError(f"no {revision}")
            return str(folder)

        self.snapshot_download = snapshot_download
        self.errors = ModuleType("huggingface_hub.errors")
        for name in ("HFValidationError", "HfHubHTTPError", "LocalEntryNotFoundError"):
            setattr(self.errors, name, type(name, (Exception,), {}))

    def install(self, patch):
        patch.setitem(sys.modules, "huggingface_hub", self)
        patch.setitem(sys.modules, "huggingface_hub.errors", self.errors)


def test_a_repository_is_fetched_at_its_revision_without_code_or_pickles(tmp_path, monkeypatch):
    _, variables = written(tmp_path)
    hub = FakeHub(tmp_path, ("main", "v2"))
    hub.install(monkeypatch)
    source = load_pretrained("owner/name", revision="v2")
    assert jax.tree.all(jax.tree.map(np.array_equal, source.variables, variables))
    ((repository, revision, patterns, passed_over),) = hub.asked
    assert (repository, revision) == ("owner/name", "v2")
    assert not any(fnmatch(name, each) for name in ("model.py", "pytorch_model.bin") for each in patterns)
    twins = ("original/model.safetensors", "consolidated.safetensors", "onnx/config.json")
    assert all(any(fnmatch(name, each) for each in passed_over) for name in twins)
    assert not any(fnmatch("model-00001-of-00002.safetensors", each) for each in passed_over)
    with pytest.raises(FileNotFoundError, match="owner/name at revision='v3' is no folder here and not had"):
        load_pretrained("owner/name", revision="v3")


def test_a_revision_of_a_folder_and_a_missing_library_are_refused(tmp_path, monkeypatch):
    written(tmp_path)
    with pytest.raises(ValueError, match=r"revision='v2' is a repository's, and .* is a folder"):
        load_pretrained(tmp_path, revision="v2")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ImportError, match=r"owner/name from the Hub needs huggingface-hub: pip install 'dew-core"
    ):
        load_pretrained("owner/name")


def test_a_pickle_is_named_and_not_read(tmp_path):
    written(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(
        FileNotFoundError, match=r"pytorch_model\.bin: a pickle can run any code and is never read"
    ):
        load_pretrained(tmp_path)


def test_a_pickle_in_the_index_is_refused(tmp_path):
    written(tmp_path, max_shard_bytes=3000)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "pytorch_model.bin"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"'pytorch_model\.bin', which is no safetensors file"):
        load_pretrained(tmp_path)


def test_a_file_cut_short_is_refused_before_anything_is_read(tmp_path):
    written(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"model\.safetensors is no whole safetensors file"):
        load_pretrained(tmp_path)


def with_tensors(folder, **changed):
    """The folder with tensors replaced, added, or with None removed."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changed}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({HEAD: None}, "lacks the tensor lm_head.weight.*set tie_word_embeddings if"),
        (
            {"model.layers.1.mlp.up_proj.bias": np.ones(24, np.float32)},
            "holds the tensor model.layers.1.mlp.up",
        ),
        ({"model.norm.weight": np.ones(16, np.int32)}, "model.norm.weight is stored as I32; F64, F32"),
        ({"model.norm.weight": np.ones((4, 4), np.float32)}, r"model.norm.weight has shape \(4, 4\)"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused_before_any_is_read(
    tmp_path, monkeypatch, tensors, message
):
    written(tmp_path)
    with_tensors(tmp_path, **tensors)
    monkeypatch.setattr(StoredTensor, "read", None)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


def test_a_tied_model_may_hold_its_head_if_it_is_the_embedding(tmp_path):
    _, variables = written(tmp_path, "llama_tied")
    table = load_file(tmp_path / "model.safetensors")[EMBEDDING]
    with_tensors(tmp_path, **{HEAD: table})
    assert jax.tree.all(jax.tree.map(np.array_equal, load_pretrained(tmp_path).variables, variables))
    with_tensors(tmp_path, **{HEAD: table + 1})
    with pytest.raises(ValueError, match=r"tie_word_embeddings=true, and the tensor lm_head\.weight is not"):
        load_pretrained(tmp_path)


def test_tokenizer_and_generation_settings_come_with_the_model_and_are_saved_with_it(tmp_path):
    policy = Sampling(temperature=0.7, top_k=5, eos_id=3)
    model = CausalTransformer(**{**BASE, "vocab_size": 256})
    variables = nn.unbox(model.init(jax.random.key(0), TOKENS))
    save_pretrained_decoder(model, variables, tmp_path / "one", tokenizer=ByteTokenizer(), sampling=policy)
    source = load_pretrained(tmp_path / "one")
    assert source.tokenizer.encode("né") == list("né".encode())
    assert source.generation_config["top_k"] == 5 and source.generation_config["eos_token_id"] == 3
    source.save(tmp_path / "two")
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / each).iterdir()} for each in ("one", "two")
    )
    assert one == two


def test_bare_names_and_masks_of_first_releases_are_read(tmp_path):
    model = CausalTransformer(
        **{**BASE, "num_kv_heads": 4},
        tie_embeddings=True,
        position="learned",
        norm_kind="layer",
        activation="gelu",
        bias=Biases(qkv=True, output=True, mlp=True),
    )
    variables = nn.unbox(model.init(jax.random.key(0), TOKENS))
    save_pretrained_decoder(model, variables, tmp_path)
    path = tmp_path / "model.safetensors"
    bare = {name.removeprefix("transformer."): value for name, value in load_file(path).items()}
    save_file({**bare, "h.0.attn.bias": np.ones((1, 1, 32, 32), np.float32)}, path)
    found = load_pretrained(tmp_path)
    assert found.config["model_type"] == "gpt2"
    assert jax.tree.all(jax.tree.map(np.array_equal, found.variables, variables))
