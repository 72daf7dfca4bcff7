"""Every family of decoders: logits and gradients of transformers' golden values, and what its files say."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from dew.interop import load_pretrained
from dew.interop.decoders.catalogue import Layout, families, family_of, layout_of
from dew.interop.decoders.names import MODEL_TYPES
from dew.interop.decoders.rotary_fields import SPELLED
from dew.interop.decoders.tensors import held_tensors, leaves_of
from dew.interop.decoders.translation import computed, config_of, model_of
from dew.nn.rotary_scaling import NEEDED, OPTIONAL

TOOLS = Path(__file__).resolve().parents[3] / "tools"


def tool(name):
    """A module of the repository's tools."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = tool("family_cases")
golden = tool("make_family_golden")
STEMS = ("families", "expert_families")
GOLDEN = {
    name: case
    for stem in STEMS
    for name, case in json.loads((golden.GOLDEN / f"{stem}.json").read_text())["cases"].items()
}
LOGITS = {name: logits for stem in STEMS for name, logits in np.load(golden.GOLDEN / f"{stem}.npz").items()}
MARGIN = 10
"""A tolerance is so many times what transformers itself loses in float32."""


QUICK = ("llama", "gemma3_text", "gpt2", "gpt_neox", "phi3", "olmo2", "glm4", "cohere2")
"""Between them they have most parts of the decoder; the others are compiled in the long run and, live, in
test_families_oracle.py."""


def some(names):
    """The names, all but the quick ones marked as slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def drawn(name):
    """The tensors of a case under the names of its file."""
    kept = GOLDEN[name]
    return {
        file: golden.draw(cases.CASES[name], kept["drawn_as"].get(file, file), tuple(shape))
        for file, shape in kept["tensors"].items()
    }


def folder(name, where, **changed):
    """A case as the folder that transformers writes, with fields of its configuration changed."""
    where.mkdir(exist_ok=True, parents=True)
    (where / "config.json").write_text(json.dumps({**GOLDEN[name]["config"], **changed}))
    save_file(drawn(name), where / "model.safetensors", metadata={"format": "pt"})
    return where


def read_model(config):
    return model_of(family_of(config["model_type"]), config, dtype=jnp.float32, param_dtype=jnp.float32)


@functools.cache
def altered_models(name):
    """The model a file describes, and the models that its altered spellings in version 4 describe."""
    case, kept = cases.CASES[name], GOLDEN[name]["config"]
    stated = {field: kept[field] for field in ("architectures", "model_type")} | dict(case.fields)
    return read_model(stated), [
        (altered, read_model({**stated, **altered})) for altered in (*case.altered, *case.weak)
    ]


def value_and_gradients(model, variables, ids):
    """Logits, and the gradient of the token-mean loss."""

    def loss(variables):
        logits = model.apply(variables, ids)
        flat = optax.losses.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:])
        return flat.mean(), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    return np.asarray(logits), gradients


@pytest.mark.parametrize("name", some(cases.CASES))
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    kept, case = GOLDEN[name], cases.CASES[name]
    source = load_pretrained(folder(name, tmp_path))
    model = source.model.clone(precision="highest")
    logits, gradients = value_and_gradients(model, source.variables, jnp.asarray(golden.token_ids(case)))
    difference = np.abs(logits[:, list(golden.POSITIONS)] - LOGITS[name]).max()
    assert difference < MARGIN * kept["floor"]
    leaves, layout = leaves_of(gradients), layout_of(model, source.config["model_type"])
    for held in held_tensors(model, layout):
        expected, found = kept["gradients"][held.name], golden.told(held.name, held.join(leaves))
        # A product of n entries with a unit direction errs by the root of n more than one of them.
        allowed = MARGIN * kept["gradient_floor"] * expected[0]
        assert abs(found[0] - expected[0]) <= allowed, held.name
        assert abs(found[1] - expected[1]) <= allowed * np.sqrt(held.join(leaves).size), held.name


@pytest.mark.parametrize("name", cases.CASES)
def test_a_folder_that_is_read_and_saved_has_the_same_tensors_and_says_the_same(name, tmp_path):
    source = load_pretrained(folder(name, tmp_path / "theirs"))
    source.save(tmp_path / "ours")
    ours, theirs = (load_file(tmp_path / each / "model.safetensors") for each in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    for tensor, value in theirs.items():
        assert ours[tensor].dtype == value.dtype and np.array_equal(ours[tensor], value), tensor
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert computed(read_model(written)) == computed(source.model)


def test_layers_that_predict_further_tokens_are_passed_over_with_a_warning(tmp_path):
    where = folder("deepseek_v3", tmp_path, num_nextn_predict_layers=1)
    layers, held = GOLDEN["deepseek_v3"]["config"]["num_hidden_layers"], drawn("deepseek_v3")
    plain = load_pretrained(folder("deepseek_v3", tmp_path / "plain"))
    last = f"model.layers.{layers - 1}."
    behind = {name.replace(last, f"model.layers.{layers}."): held[name] for name in held if last in name}
    save_file({**held, **behind}, where / "model.safetensors")
    with pytest.warns(UserWarning, match=f"holds {len(behind)} tensors of layers that predict further"):
        source = load_pretrained(where)
    assert jax.tree.all(jax.tree.map(np.array_equal, source.variables, plain.variables))
    save_file(
        {**held, f"model.layers.{layers + 1}.norm.weight": np.ones(2, np.float32)},
        where / "model.safetensors",
    )
    with pytest.raises(ValueError, match=f"holds the tensor model.layers.{layers + 1}.norm.weight"):
        load_pretrained(where)


def test_experts_stored_in_several_dtypes_are_refused_unless_one_is_named(tmp_path):
    where = folder("mixtral", tmp_path)
    name = next(each for each in drawn("mixtral") if "experts" in each)
    save_file(
        {**drawn("mixtral"), name: drawn("mixtral")[name].astype(np.float16)}, where / "model.safetensors"
    )
    with pytest.raises(ValueError, match=r"stored in float.*name a param_dtype"):
        load_pretrained(where, param_dtype="auto")
    load_pretrained(where, param_dtype="float32")


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_every_field_that_is_read_has_an_alteration(name):
    """What moves the logits of transformers is measured in test_families_oracle.py."""
    own = [case for each, case in cases.CASES.items() if GOLDEN[each]["config"]["model_type"] == name]
    told = {
        field
        for case in own
        for part in (case.altered, case.weak, case.refused)
        for each in part
        for field in each
    }
    stated = {field for case in own for field in case.fields}
    shapes = {field for field in cases.SHAPES if field in stated or field.endswith("bias")}
    assert own and set(family_of(name).read_fields) - EITHER - set(cases.LENGTHS) <= told | shapes | SHAPED


EITHER = {
    "rope_parameters",
    "rope_scaling",
    "hidden_activation",
    "hidden_act",
    "num_local_experts",
    "num_experts",
    "experts_per_token",
}
"""Two names of one thing: one of them is altered in each family, both in the llama, gemma and phi3 cases."""
SHAPED = set(cases.SHAPES)


@pytest.mark.parametrize("kind", NEEDED)
def test_every_field_of_a_scaling_has_an_alteration(kind):
    read = {SPELLED[each] for each in (*NEEDED[kind], *OPTIONAL.get(kind, ()))}
    read -= {"original_max_position_embeddings"} if kind == "dynamic" else set()
    found: set[str] = set()
    for case in cases.CASES.values():
        base = case.fields.get("rope_scaling") or {}
        for altered in case.altered:
            for spelled in (altered.get("rope_scaling"), altered.get("rope_parameters")):
                told = spelled or {}
                if kind in (told.get("rope_type"), told.get("type"), base.get("type")):
                    found |= {field for field, value in told.items() if base.get(field) != value}
            found |= set(altered) & read if base.get("type") == kind else set()
    assert read <= found


@pytest.mark.parametrize("name", cases.CASES)
def test_every_alteration_changes_the_model_that_is_read(name):
    base, altered = altered_models(name)
    for fields, model in altered:
        assert computed(model) != computed(base), fields


@pytest.mark.parametrize("name", cases.CASES)
def test_both_spellings_of_transformers_describe_one_model(name):
    assert computed(altered_models(name)[0]) == computed(read_model(GOLDEN[name]["config"]))


@pytest.mark.parametrize("name", cases.CASES)
def test_a_model_is_described_by_what_its_family_writes(name):
    model, altered = altered_models(name)
    family = family_of(GOLDEN[name]["config"]["model_type"])
    for each in (model, *(model for _, model in altered)):
        assert computed(read_model(config_of(family, each))) == computed(each)


OTHER = {
    "vocab_size": 98,
    "hidden_size": 128,
    "n_embd": 128,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 12,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 2,
    "first_k_dense_replace": 2,
    "moe_layers": [0],
    "qk_rope_head_dim": 6,
    "index_head_dim": 24,
}


@pytest.mark.parametrize("name", some(MODEL_TYPES))
def test_a_size_that_the_tensors_do_not_have_is_refused(name):
    case = next(each for each in cases.CASES if GOLDEN[each]["config"]["model_type"] == name)
    config, family = GOLDEN[case]["config"], family_of(name)
    loose = {
        each: None
        for each in ("layer_types", "mlp_layer_types", "moe_layers", "no_rope_layers", "rope_parameters")
        if each in config
    }
    # Latent attention has no key heads of its own: what a file says of them is refused elsewhere.
    silent = {"num_attention_heads"} | ({"num_key_value_heads"} if "kv_lora_rank" in config else set())
    # Some norms of queries and keys have no scale.
    silent |= {"use_qk_norm"} & {field for each in cases.CASES[case].altered for field in each}
    for field in set(family.read_fields) & SHAPED & set(config) - silent:
        value = not config[field] if isinstance(config[field], bool) else OTHER.get(field, 5)
        model = read_model({**config, **loose, field: value})
        layout = Layout(family=family, doubled=False, fields={})
        shapes = {held.name: list(held.shape) for held in held_tensors(model, layout)}
        assert shapes != GOLDEN[case]["tensors"], field


@pytest.mark.parametrize("name", [name for name in MODEL_TYPES if name not in ("gpt2", "gpt_neox")])
def test_another_number_of_heads_makes_other_projections(name):
    """In GPT-2 and GPT-NeoX it does not, and there the number is one of the alterations."""
    case = next(each for each in cases.CASES if GOLDEN[each]["config"]["model_type"] == name)
    config = GOLDEN[case]["config"]
    if "kv_lora_rank" in config:
        # Latent attention has as many key heads, and its files say so.
        config = {**config, "num_key_value_heads": None}
    base, other = (read_model({**config, "num_attention_heads": heads}) for heads in (4, 8))
    widths = [
        (model.num_heads * model.head_width, model.kv_heads * model.head_width) for model in (base, other)
    ]
    assert widths[0] != widths[1]


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if case.refused])
def test_what_a_family_does_not_compute_is_refused_by_its_field(name):
    for fields in cases.CASES[name].refused:
        with pytest.raises(ValueError, match=next(iter(fields))):
            read_model({**GOLDEN[name]["config"], **fields})


def test_precedence_is_stated_once_for_each_family():
    numbers = [family.precedence for family in families()]
    assert numbers == sorted(set(numbers))
