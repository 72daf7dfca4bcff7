"""Attention in chunks: who sees whom, in documents, kernels, caches, prediction depths and statistics."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.attention import scaled_dot_product_attention
from dew.nn.backbones.causal_transformer import MLA, CausalTransformer
from dew.nn.backbones.causal_transformer.chunks import chunk_ids
from dew.nn.sharding import unboxed
from dew.testing.products import multiply_adds

SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 4,
    "intermediate_size": 24,
    "max_seq_len": 32,
    "precision": "highest",
    "attention_chunk_size": 3,
}
MIXER = MLA(
    kv_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    q_lora_rank=10,
    index_n_heads=8,
    index_head_dim=6,
    index_topk=2,
)
TOKENS = np.random.default_rng(5).integers(0, 31, (2, 12)).astype(np.int32)


def build(**fields):
    """A model and variables wide enough that every part matters."""
    model = CausalTransformer(**{**SIZES, **fields})
    template = unboxed(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
    rng = np.random.default_rng(11)
    return model, jax.tree.map(
        lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape) + (leaf.ndim == 1), jnp.float32),
        template,
    )


def applied(model, method, **options):
    return jax.jit(functools.partial(model.apply, method=method, **options))


def row_positions(start, stop):
    return jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))


def test_tokens_of_one_chunk_of_one_document_share_a_number():
    documents = np.repeat([-1, 0, 1, 2], [2, 4, 7, 5])
    positions = np.r_[5, 6, np.arange(4), np.arange(7), np.arange(9, 14)]
    ids = np.asarray(chunk_ids(jnp.asarray([positions]), 3, jnp.asarray([documents])))[0]
    for one in range(18):
        for other in range(18):
            alike = documents[one] == documents[other] and positions[one] // 3 == positions[other] // 3
            assert (ids[one] == ids[other]) == alike, (one, other)


@pytest.mark.parametrize("implementation", ["reference", "xla", "auto"])
def test_a_query_sees_the_keys_of_its_chunk_up_to_itself(implementation):
    length, size = 150, 40
    draw = iter(jax.random.split(jax.random.key(2), 3))
    query, key, value = (jax.random.normal(next(draw), (2, length, 2, 8)) for _ in range(3))
    ids = chunk_ids(jnp.arange(length)[None], size)
    with jax.default_matmul_precision("highest"):
        found = scaled_dot_product_attention(
            query,
            key,
            value,
            causal=True,
            window=size,
            query_segment_ids=ids,
            key_segment_ids=ids,
            implementation=implementation,
        )
    for start in range(0, length, size):
        own = (np.asarray(each[:, start : start + size], np.float64) for each in (query, key, value))
        q, k, v = own
        powers = np.tril(np.exp(np.einsum("bthd,bshd->bhts", q, k) * 8**-0.5))
        right = np.einsum("bhts,bshd->bthd", powers / powers.sum(-1, keepdims=True), v)
        np.testing.assert_allclose(found[:, start : start + size], right, atol=2e-5)


def test_tiles_before_a_chunk_are_not_computed():
    sizes = {"max_seq_len": 512, "attention_chunk_size": 64, "precision": None}
    tokens = np.zeros((1, 512), np.int32)
    chunked, whole = (build(**sizes | more)[0] for more in ({}, {"attention_chunk_size": None}))
    variables = jax.eval_shape(whole.init, jax.random.key(0), tokens)
    counts = [multiply_adds(model.apply, variables, tokens) for model in (chunked, whole)]
    # 64 queries with 128 keys in all tiles but the first, in place of all keys up to theirs; 2 products.
    assert counts[1] - counts[0] == 2 * 16 * 64 * 64 * (36 - 15)


def test_a_chunk_of_a_row_is_the_chunk_alone():
    """Turned heads see differences of positions, and those are the chunk's own."""
    model, variables = build()
    states = applied(model, "hidden_states")
    whole = states(variables, TOKENS)
    for start in range(0, 12, 3):
        alone = states(variables, TOKENS[:, start : start + 3])
        np.testing.assert_allclose(whole[:, start : start + 3], alone, atol=2e-5)


def test_the_largest_logits_of_a_row_are_those_of_its_chunks():
    model, variables = build()
    read = applied(model, "hidden_states", mutable=["qk"])

    def maxima(tokens):
        return read(variables, tokens)[1]["qk"]["layers_0"]["self_attn"]["max_logits"][0]

    each = [maxima(TOKENS[:, start : start + 3]) for start in range(0, 12, 3)]
    np.testing.assert_allclose(maxima(TOKENS), np.max(each, axis=0), rtol=1e-5)


def test_latent_attention_decodes_and_packs_in_chunks():
    model, variables = build(mixer=MIXER)
    states = applied(model, "hidden_states")
    whole, cache = states(variables, TOKENS), model.init_cache(2, 16)
    step = applied(model, "decode")
    for start, stop in ((0, 10), (10, 11), (11, 12)):
        given = TOKENS[:, start:stop], row_positions(start, stop), jnp.ones((2, stop - start), bool)
        found, cache = step(variables, *given, cache)
        np.testing.assert_allclose(found, whole[:, start:stop], atol=2e-5)
    places = {
        "segment_ids": jnp.asarray([[1] * 5 + [2] * 7] * 2),
        "positions": jnp.asarray([[*range(5), *range(7)]] * 2),
    }
    packed = states(variables, TOKENS, **places)
    np.testing.assert_allclose(packed[:, 5:], states(variables, TOKENS[:, 5:]), atol=2e-5)


def test_a_cached_prediction_depth_has_the_chunks_of_the_whole_row():
    """Its slots begin at the row's second token, and its chunks are the row's."""
    model, variables = build(num_nextn_predict_layers=1)
    hidden = applied(model, "hidden_states")(variables, TOKENS)
    whole = applied(model, "mtp_hidden_states")(variables, TOKENS, hidden)[0]
    before, cache = jnp.pad(hidden, ((0, 0), (1, 0), (0, 0))), model.init_mtp_cache(2, 16)
    step = jax.jit(lambda variables, *given: model.apply(variables, 1, *given, method="mtp_decode"))
    for start, stop in ((0, 6), (6, 12)):
        part, places = slice(start, stop), row_positions(start, stop)
        found, cache = step(variables, TOKENS[:, part], before[:, part], places, places >= 1, cache)
        np.testing.assert_allclose(found[:, start == 0 :], whole[:, part][:, start == 0 :], atol=2e-5)
