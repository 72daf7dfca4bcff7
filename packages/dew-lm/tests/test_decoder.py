"""The decoder: names, packed rows, windows and caps, cached decoding, recomputation, refusals."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width, windows
from dew.nn.moe.config import Mixture
from dew.nn.sharding import unboxed

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
VARIANTS = {
    "plain": {},
    "windowed": {"sliding_window": 3, "sliding_layers": (True, False), "qk_norm": True},
    "capped": {"attn_logit_softcap": 2.0, "final_logit_softcap": 3.0, "activation": "relu2"},
    "tied": {"tie_embeddings": True, "activation": "geglu"},
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


def numpy_logits(model, variables, tokens, positions=None):
    """The decoder's formula for one row, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    length, width, heads = len(tokens), model.head_width, model.num_heads
    positions = np.arange(length) if positions is None else positions

    def norm(x, scale):
        return scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_eps)

    def cap(x, limit):
        return x if limit is None else limit * np.tanh(x / limit)

    def rotated(x):
        turn = positions[:, None] * model.rope_theta ** (-np.arange(0, width, 2) / width)
        pairs = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * np.exp(1j * turn)[:, None]
        return np.concatenate([pairs.real, pairs.imag], -1)

    x = params["embed_tokens"]["embedding"][tokens]
    distance = np.arange(length)[:, None] - np.arange(length)
    for index in range(model.num_layers):
        layer = params[f"layers_{index}"]
        attention, mlp = layer["self_attn"], layer["mlp"]
        h = norm(x, layer["input_layernorm"]["scale"])
        query, key, value = (
            (h @ attention[f"{name}_proj"]["kernel"]).reshape(length, -1, width) for name in "qkv"
        )
        if model.qk_norm:
            query = norm(query, attention["q_norm"]["scale"])
            key = norm(key, attention["k_norm"]["scale"])
        query, key = rotated(query), rotated(key)
        windowed = model.sliding_window and (model.sliding_layers or (True,))[index % 2]
        allowed = (distance >= 0) & (distance < (model.sliding_window if windowed else length))
        mixed = []
        for head in range(heads):
            shared = head // (heads // model.kv_heads)
            scores = cap(query[:, head] @ key[:, shared].T / np.sqrt(width), model.attn_logit_softcap)
            weights = np.where(allowed, np.exp(scores - scores.max()), 0)
            mixed.append(weights / weights.sum(-1, keepdims=True) @ value[:, shared])
        x = x + np.concatenate(mixed, -1) @ attention["o_proj"]["kernel"]
        h = norm(x, layer["post_attention_layernorm"]["scale"])
        up = h @ mlp["up_proj"]["kernel"]
        if model.activation == "relu2":
            inner = np.maximum(up, 0) ** 2
        else:
            gate = h @ mlp["gate_proj"]["kernel"]
            sigmoid = 1 / (1 + np.exp(-gate))
            gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            inner = up * (gate * sigmoid if model.activation == "swiglu" else gelu)
        x = x + inner @ mlp["down_proj"]["kernel"]
    x = norm(x, params["norm"]["scale"])
    tied = model.tie_embeddings
    head = params["embed_tokens"]["embedding"].T if tied else params["lm_head"]["kernel"]
    return cap(x @ head, model.final_logit_softcap)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_the_formula_in_float64(variant):
    model, variables = build(**VARIANTS[variant])
    got = jax.jit(model.apply)(variables, TOKENS)
    expected = np.stack([numpy_logits(model, variables, row) for row in TOKENS])
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_given_positions_turn_the_heads():
    # Rotation sees differences alone, so the positions here are no shifted count.
    model, variables = build()
    positions = np.array([0, 2, 3, 7, 8, 11, 12, 13, 20, 21, 22, 29])
    got = compiled(model, "__call__")(variables, TOKENS[:1], positions=positions[None])
    np.testing.assert_allclose(got[0], numpy_logits(model, variables, TOKENS[0], positions), atol=2e-4)


def test_parameters_are_named_and_shaped_as_in_llama_checkpoints():
    _, variables = build(qk_norm=True)
    shapes = {path: leaf.shape for path, leaf in flatten_dict(variables["params"], sep="/").items()}
    layer = {
        "input_layernorm/scale": (16,),
        "post_attention_layernorm/scale": (16,),
        "self_attn/q_proj/kernel": (16, 16),
        "self_attn/k_proj/kernel": (16, 8),
        "self_attn/v_proj/kernel": (16, 8),
        "self_attn/o_proj/kernel": (16, 16),
        "self_attn/q_norm/scale": (4,),
        "self_attn/k_norm/scale": (4,),
        "mlp/gate_proj/kernel": (16, 24),
        "mlp/up_proj/kernel": (16, 24),
        "mlp/down_proj/kernel": (24, 16),
    }
    assert shapes == {
        "embed_tokens/embedding": (31, 16),
        "norm/scale": (16,),
        "lm_head/kernel": (16, 31),
        **{f"layers_{i}/{name}": shape for i in range(2) for name, shape in layer.items()},
    }


def test_every_parameter_names_each_of_its_axes():
    model = CausalTransformer(**SMALL, qk_norm=True)
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    for path, leaf in flatten_dict(boxed["params"]).items():
        assert len(leaf.names) == leaf.value.ndim and None not in leaf.names, path


def packed(first, second):
    tokens = np.concatenate([first, second])[None]
    segments = np.repeat([3, 1], [len(first), len(second)])[None]
    positions = np.concatenate([np.arange(len(first)), np.arange(len(second))])[None]
    return {"tokens": tokens, "segment_ids": segments, "positions": positions}


def states(model, variables, tokens, **kwargs):
    return compiled(model, "hidden_states")(variables, tokens, **kwargs)


EXPERTS = {"mixture": Mixture(num_experts=4, top_k=2)}


@pytest.mark.parametrize("fields", [*VARIANTS.values(), EXPERTS], ids=[*VARIANTS, "experts"])
def test_a_packed_document_equals_the_document_alone(fields):
    model, variables = build(**fields)
    first, second = TOKENS[0][:5], TOKENS[1]
    together = states(model, variables, **packed(first, second))[:, 5:]
    np.testing.assert_allclose(together, states(model, variables, second[None]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_another_first_document_changes_the_second_by_exactly_nothing(variant):
    model, variables = build(**VARIANTS[variant])
    first, second = TOKENS[0][:5], TOKENS[1]
    before = states(model, variables, **packed(first, second))
    after = states(model, variables, **packed((first + 1) % 31, second))
    assert np.abs(before - after)[:, :5].max() > 0.1
    np.testing.assert_array_equal(before[:, 5:], after[:, 5:])


def test_another_first_document_moves_the_second_by_the_experts_rounding_alone():
    model, variables = build(**EXPERTS)
    first, second = TOKENS[0][:5], TOKENS[1]
    before = states(model, variables, **packed(first, second))
    after = states(model, variables, **packed((first + 1) % 31, second))
    np.testing.assert_allclose(before[:, 5:], after[:, 5:], atol=2e-6, rtol=0)


def test_a_window_of_three_sees_the_token_two_back_and_not_the_one_before():
    model, variables = build(num_layers=1, sliding_window=3)

    def seen(at):
        changed = TOKENS.copy()
        changed[:, at] = (changed[:, at] + 1) % 31
        difference = states(model, variables, changed) - states(model, variables, TOKENS)
        return float(np.abs(difference)[:, 7].max())

    assert seen(5) > 1e-3
    assert seen(4) == 0.0
    assert seen(8) == 0.0


def decoded(model, variables, tokens, prompt):
    """The states of every token: `prompt` of them at once, then one at a time."""
    rows, length = tokens.shape
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    valid = np.ones((rows, length), bool)
    cache = model.init_cache(rows, length + 3)
    pieces = [slice(0, prompt), *(slice(i, i + 1) for i in range(prompt, length))]
    found = []
    for piece in pieces:
        hidden, cache = compiled(model, "decode")(
            variables, tokens[:, piece], positions[:, piece], valid[:, piece], cache
        )
        found.append(hidden)
    return np.concatenate(found, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_decoding_equals_the_full_forward(variant):
    model, variables = build(**VARIANTS[variant])
    full = states(model, variables, TOKENS)
    np.testing.assert_allclose(decoded(model, variables, TOKENS, 7), full, atol=1e-5, rtol=1e-5)


def test_rows_of_different_lengths_decode_as_they_would_alone():
    model, variables = build()
    lengths = np.array([4, 7])
    positions = np.broadcast_to(np.arange(7, dtype=np.int32), (2, 7))
    valid = positions < lengths[:, None]
    cache = model.init_cache(2, 10)
    _, cache = compiled(model, "decode")(variables, TOKENS[:, :7], positions, valid, cache)
    assert float(np.abs(cache["layers_0"]["key"][0, :, :, 4:]).max()) == 0.0
    following, _ = compiled(model, "decode")(
        variables, TOKENS[:, 8:9], lengths[:, None], np.ones((2, 1), bool), cache
    )
    for row, length in enumerate(lengths):
        alone = np.concatenate([TOKENS[row, :length], TOKENS[row, 8:9]])[None]
        expected = states(model, variables, alone)[0, -1]
        np.testing.assert_allclose(following[row, 0], expected, atol=1e-5, rtol=1e-5)


def test_recomputing_layers_changes_neither_values_nor_gradients():
    def gradient(remat):
        model, variables = build(remat=remat)
        return jax.jit(jax.value_and_grad(lambda v: jnp.square(model.apply(v, TOKENS)).mean()))(variables)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), gradient(False), gradient(True)
    )


def test_a_bfloat16_model_stores_float32_and_gives_float32_logits():
    model = CausalTransformer(**{**SMALL, "precision": None}, dtype=jnp.bfloat16)
    variables = unboxed(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert states(model, variables, TOKENS).dtype == jnp.bfloat16
    assert model.apply(variables, TOKENS).dtype == jnp.float32


def test_fresh_logits_have_about_unit_scale_tied_and_untied():
    for tied in (False, True):
        model = CausalTransformer(**{**SMALL, "hidden_size": 64, "vocab_size": 200}, tie_embeddings=tied)
        variables = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
        assert 0.5 < float(model.apply(variables, TOKENS).std()) < 1.5


def test_the_default_inner_width_is_four_times_or_eight_thirds_rounded_to_64():
    assert feed_forward_width(128, "relu2") == 512
    assert feed_forward_width(768, "swiglu") == 2048
    assert feed_forward_width(100, "geglu") == 320


def test_a_pattern_of_windows_repeats_over_the_layers():
    assert windows(5, 8, (True, True, False)) == (8, 8, None, 8, 8)
    assert windows(2, 8, None) == (8, 8)
    assert windows(2, None, None) == (None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads=3 must divide num_heads=4; use 1, 2, 4"),
        ({"num_heads": 5, "num_kv_heads": 5}, "num_heads=5 must divide hidden_size=16"),
        ({"head_dim": 3}, "head_dim=3 must be even"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"activation": "glu"}, "activation='glu' must be one of swiglu, geglu, geglu_erf, relu2"),
        ({"sliding_layers": (True,)}, "needs sliding_window"),
        ({"sliding_window": 4, "sliding_layers": ()}, "at least one flag"),
        ({"sliding_window": 4, "causal": False}, "sliding_window=4 needs causal=True"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        CausalTransformer(**{**SMALL, **fields})


def test_rows_and_caches_beyond_the_longest_sequence_are_refused():
    model, variables = build()
    with pytest.raises(ValueError, match="33 positions, over max_seq_len=32"):
        states(model, variables, np.zeros((1, 33), np.int32))
    with pytest.raises(ValueError, match="capacity=33 is over max_seq_len=32"):
        model.init_cache(1, 33)
