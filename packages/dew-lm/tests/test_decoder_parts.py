"""The decoder's parts together: cached decoding, packed rows, recomputation, stages, costs, records."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dew.config import ModelConfig
from dew.config.record import encode
from dew.interop.decoders.translation import computed
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Biases, Rotary, Scales, Temperature
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.moe import ClampedGate, Mixture
from dew.nn.rotary_scaling import RotaryScaling
from dew.nn.sharding import unboxed
from dew.testing.products import multiply_adds

SMALL = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 24,
    "max_seq_len": 32,
    "precision": "highest",
}
YARN = RotaryScaling(kind="yarn", factor=4.0, original_length=8)
LONG = RotaryScaling(
    kind="longrope", factor=4.0, original_length=8, short_factors=(1.0, 2.0), long_factors=(3.0, 5.0)
)
DYNAMIC = RotaryScaling(kind="dynamic", factor=2.0, original_length=8)
LATENT = {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
WINDOWS = {"sliding_window": 3, "sliding_layers": (True, False)}
CHUNKS = {"attention_chunk_size": 3, "chunked_layers": (True, False)}
PARTS = {
    "gpt2": {
        "position": "learned",
        "norm_kind": "layer",
        "activation": "gelu",
        "bias": Biases(qkv=True, output=True, mlp=True),
        "scales": Scales(attention_by_layer=True),
    },
    "gemma": {
        "norm_kind": "rms_offset",
        "block": "sandwich",
        "qk_norm": True,
        "rotary": Rotary(local_theta=100.0),
        "scales": Scales(embedding=4.0, attention=0.3),
        **WINDOWS,
    },
    "cohere": {
        "norm_kind": "layer_scale",
        "block": "parallel_shared",
        "rotary": Rotary(pairs="neighbours", layers=(True, False)),
        "scales": Scales(logits=0.25),
        **WINDOWS,
    },
    "neox": {"block": "parallel", "activation": "gelu_erf", "rotary": Rotary(fraction=0.5)},
    "olmo": {"block": "post", "qk_norm": "width", "scales": Scales(residual=0.5)},
    "yarn": {"rotary": Rotary(scaling=YARN), "activation": "geglu_erf"},
    "llama4": {
        "rotary": Rotary(pairs="neighbours", layers=(True, False)),
        "qk_norm": "l2",
        "attention_temperature": Temperature(strength=0.5, every=2),
        **CHUNKS,
    },
}
TOKENS = np.random.default_rng(5).integers(0, 31, (2, 12)).astype(np.int32)


def build(**fields):
    """A model and variables wide enough that every part matters."""
    model = CausalTransformer(**{**SMALL, **fields})
    template = unboxed(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    rng = np.random.default_rng(11)
    return model, jax.tree.map(
        lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape) + (leaf.ndim == 1), jnp.float32),
        template,
    )


@functools.cache
def compiled(model, method):
    return jax.jit(functools.partial(model.apply, method=method))


def states(model, variables, tokens, **options):
    return compiled(model, "hidden_states")(variables, tokens, **options)


@pytest.mark.parametrize("name", PARTS)
def test_decoding_token_by_token_gives_the_states_of_the_whole_row(name):
    model, variables = build(**PARTS[name])
    whole = states(model, variables, TOKENS)
    cache = model.init_cache(2, 16)
    positions = jnp.broadcast_to(jnp.arange(12), (2, 12))
    for start, stop in ((0, 9), (9, 10), (10, 11), (11, 12)):
        part = positions[:, start:stop]
        valid = jnp.ones(part.shape, bool)
        found, cache = compiled(model, "decode")(variables, TOKENS[:, start:stop], part, valid, cache)
        np.testing.assert_allclose(found, whole[:, start:stop], atol=2e-5)


@pytest.mark.parametrize("name", PARTS)
def test_a_packed_document_is_the_document_alone(name):
    model, variables = build(**PARTS[name])
    segments = jnp.asarray([[1] * 5 + [2] * 7])
    positions = jnp.asarray([[*range(5), *range(7)]])
    packed = states(model, variables, TOKENS[:1], segment_ids=segments, positions=positions)
    np.testing.assert_allclose(packed[:, 5:], states(model, variables, TOKENS[:1, 5:]), atol=2e-5)


def test_frequencies_that_follow_a_rows_length_are_those_of_the_longest_row_while_decoding():
    """Keys stay turned in the cache, so a cache for 16 positions turns as a row of 16 does."""
    model, variables = build(rotary=Rotary(scaling=LONG))
    rows = np.concatenate([TOKENS, TOKENS[:, :4]], axis=1)
    positions = jnp.broadcast_to(jnp.arange(16), (2, 16))
    for length, capacity in ((16, 16), (6, 8)):
        given = rows[:, :length], positions[:, :length], jnp.ones((2, length), bool)
        cache = model.init_cache(2, capacity)
        found, _ = compiled(model, "decode")(variables, *given, cache)
        np.testing.assert_allclose(found, states(model, variables, rows[:, :length]), atol=2e-5)


def test_recomputing_layers_changes_no_gradient():
    model, variables = build(**PARTS["gemma"])

    def gradient(model):
        return jax.jit(jax.grad(lambda tree: jnp.sum(states(model, tree, TOKENS) ** 2)))(variables)

    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4),
        gradient(model),
        gradient(model.clone(remat=True)),
    )


def test_an_embedding_scale_is_rounded_to_the_type_that_computes():
    """As Gemma has it: the root of 3072 is 55.5 in bfloat16, not 55.4256."""
    found = {}
    for dtype in (jnp.bfloat16, jnp.float32):
        for scale in (3072**0.5, 55.5):
            model, variables = build(scales=Scales(embedding=scale), norm_eps=1e4)
            model = model.clone(dtype=dtype, precision=None)
            found[dtype, scale] = np.asarray(states(model, variables, TOKENS), np.float32)
    narrow, wide = (
        [found[dtype, scale] for scale in (3072**0.5, 55.5)] for dtype in (jnp.bfloat16, jnp.float32)
    )
    np.testing.assert_array_equal(*narrow)
    assert np.abs(wide[0] - wide[1]).max() > 0


def test_layers_that_differ_in_turn_or_scale_are_kinds_of_their_own():
    kinds = {name: build(**PARTS[name])[0].bank.view.kinds for name in PARTS}
    assert kinds["gemma"] == ("window 3, local", "full")
    assert kinds["cohere"] == ("window 3", "full, unturned")
    assert kinds["gpt2"] == ("full, unturned, scale 0.5", "full, unturned, scale 0.25")
    assert kinds["yarn"] == ("full", "full")
    assert kinds["llama4"] == ("chunk 3", "full, unturned")


@pytest.fixture(scope="module")
def llama4():
    """Layers that turn and that do not, a stream, and its projections to queries and keys of both layers."""
    model, variables = build(**PARTS["llama4"])
    bound = model.bind(variables)
    x = jax.random.normal(jax.random.key(2), (1, 6, 16))
    places = bound._places(jnp.asarray([[0, 1, 2, 3, 0, 1]]))
    found = [layer.self_attn._project(x, places)[:2] for layer in bound.layers]
    kernels = [variables["params"][f"layers_{index}"]["self_attn"] for index in range(2)]
    plain = [
        [(x @ each[name]["kernel"]).reshape(1, 6, -1, 4) for name in ("q_proj", "k_proj")] for each in kernels
    ]
    return found, plain


def test_queries_grow_with_their_position_in_the_document_where_heads_do_not_turn(llama4):
    (_, (query, key)), (_, (plain_query, plain_key)) = llama4
    growth = 1 + 0.5 * np.log1p([0, 1, 1, 2, 0, 1])
    np.testing.assert_allclose(query, plain_query * growth[:, None, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(key, plain_key, rtol=1e-5, atol=1e-6)


def test_heads_that_turn_are_divided_by_their_root_mean_square(llama4):
    ((query, key), _), ((plain_query, plain_key), _) = llama4
    for found, plain in ((query, plain_query), (key, plain_key)):
        plain = np.asarray(plain)
        root = np.sqrt(np.mean(np.square(plain), axis=-1, keepdims=True))
        np.testing.assert_allclose(np.mean(np.square(found), axis=-1), 1, rtol=1e-4)
        # Nothing turns at position 0.
        np.testing.assert_allclose(found[:, 0], (plain / root)[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PARTS)
def test_multiply_adds_are_those_of_the_traced_products(name):
    fields = {**PARTS[name], "causal": False, **dict.fromkeys((*WINDOWS, *CHUNKS))}
    fields |= {"rotary": Rotary()} if name == "gemma" else {}
    model, variables = build(**fields, attention_impl="reference")
    traced = multiply_adds(lambda: model.apply(variables, TOKENS[:1]))
    assert model.forward_macs(12) == traced


@pytest.mark.parametrize("name", PARTS)
def test_a_decoder_is_built_from_the_record_of_a_run(name):
    fields = {**SMALL, **PARTS[name]}
    record = json.loads(json.dumps(encode(fields, "")))
    built = ModelConfig("causal_transformer", record, dtype="float32").build()
    assert computed(built) == computed(CausalTransformer(**fields))


def test_parameters_of_new_parts_are_named_as_their_families_name_them():
    _, variables = build(**PARTS["gemma"])
    layer = {path for path in flatten_dict(variables["params"]["layers_0"], sep="/") if "norm" in path}
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    assert layer == {f"{name}_layernorm/scale" for name in norms} | {
        "self_attn/q_norm/scale",
        "self_attn/k_norm/scale",
    }
    _, variables = build(**PARTS["gpt2"])
    assert variables["params"]["embed_positions"]["embedding"].shape == (32, 16)
    assert variables["params"]["layers_0"]["self_attn"]["k_proj"]["bias"].shape == (8,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": "before"}, "block='before' must be one of pre, post, sandwich, parallel, parallel_shared"),
        ({"norm_kind": "batch"}, "norm_kind='batch' must be one of rms, rms_offset, layer, layer_scale"),
        ({"qk_norm": "layer"}, "qk_norm='layer' must be one of False, True, width, l2"),
        ({"qk_norm": "l2", "position": "learned"}, "qk_norm='l2' acts in layers that turn, and none does"),
        ({"attention_temperature": Temperature()}, "acts in layers that do not turn, and all do"),
        ({"attention_chunk_size": 0}, "attention_chunk_size=0 must be at least 1"),
        ({"attention_chunk_size": 3, "causal": False}, "attention_chunk_size=3 needs causal=True"),
        ({"chunked_layers": (True,)}, "needs attention_chunk_size, the size of those layers' chunks"),
        ({**CHUNKS, "chunked_layers": (False,)}, "puts chunks in no layer"),
        ({"position": "alibi"}, "position='alibi' must be one of rotary, learned"),
        ({"rotary": Rotary(local_theta=1e4)}, "rotary.local_theta=10000.0 is the base of layers with a sl"),
        ({"position": "learned", "rotary": Rotary(fraction=0.5)}, "rotary=.* with position='learned'"),
        ({"position": "learned", "rope_theta": 500.0}, "rope_theta=500.0 with position='learned'"),
        (
            {"bias": Biases(mlp=True), "mixture": Mixture(num_experts=2, top_k=1)},
            "bias.mlp=True with a mixture in every layer",
        ),
        ({"rope_theta": -1}, "rope_theta=-1 must be a finite number above 0"),
        ({"rope_theta": 0}, "rope_theta=0 must be a finite number above 0"),
        ({"rope_theta": 1.0, "rotary": Rotary(scaling=YARN)}, "rope_theta=1.0 must be above 1 with .* yarn"),
        ({"head_dim": 2, "rotary": Rotary(scaling=DYNAMIC)}, "head_dim=2 leaves one turning pair"),
        ({"norm_eps": -1.0}, "norm_eps=-1.0 must be a finite number above 0"),
        ({"norm_eps": float("nan")}, "norm_eps=nan must be a finite number above 0"),
        (
            {"attn_logit_softcap": 0.0},
            "attn_logit_softcap=0.0 must be a finite number above 0; leave it unset",
        ),
        (
            {"final_logit_softcap": -1},
            "final_logit_softcap=-1 must be a finite number above 0; leave it unset",
        ),
        ({"rotary": Rotary(fraction=0.8)}, "the 3 that rotary.fraction=0.8 takes of head_dim=4 must be even"),
    ],
)
def test_parts_that_there_are_not_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        CausalTransformer(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("record", "fields", "message"),
    [
        (Rotary, {"local_theta": 0.0}, r"rotary\.local_theta=0\.0"),
        (Scales, {"embedding": 0.0}, r"scales\.embedding=0\.0"),
        (Scales, {"residual": -1.0}, r"scales\.residual=-1\.0"),
        (Scales, {"logits": float("inf")}, r"scales\.logits=inf"),
        (Scales, {"attention": float("nan")}, r"scales\.attention=nan"),
        (Temperature, {"strength": float("inf")}, r"attention_temperature\.strength=inf"),
        (MLA, {**LATENT, "norm_eps": 0.0}, r"mixer norm_eps=0\.0"),
        (ClampedGate, {"alpha": float("inf")}, r"mixture gate\.alpha=inf"),
        (ClampedGate, {"limit": -7.0}, r"mixture gate\.limit=-7\.0"),
        (Mixture, {"num_experts": 2, "top_k": 1, "scale": float("inf")}, "mixture scale=inf"),
    ],
)
def test_numbers_of_a_part_are_finite_and_above_zero(record, fields, message):
    with pytest.raises(ValueError, match=f"{message} must be a finite number above 0"):
        record(**fields)


def test_a_word_in_place_of_a_number_is_refused_by_its_field():
    with pytest.raises(TypeError, match="norm_eps='small' must be a finite number above 0"):
        CausalTransformer(**{**SMALL, "norm_eps": "small"})
