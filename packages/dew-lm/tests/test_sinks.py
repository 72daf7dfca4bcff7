"""Trained sinks of a decoder's heads: their share of the attention, and decoding with a cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import MLA, CausalTransformer
from dew.nn.sharding import unboxed

SIZES = {"vocab_size": 16, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "max_seq_len": 8}
IDS = np.random.default_rng(0).integers(0, 16, (2, 6)).astype(np.int32)


def built(value):
    """A model whose heads have sinks of the given score."""
    model = CausalTransformer(**SIZES, sinks=True, sliding_window=3, precision="highest")
    variables = unboxed(model.init(jax.random.key(0), IDS))
    attention = variables["params"]["layers_0"]["self_attn"]
    assert attention["sinks"].shape == (2,) and not attention["sinks"].any()
    attention["sinks"] = jnp.full(2, value)
    return model, variables


def test_a_sink_below_all_scores_takes_nothing_and_one_above_takes_all():
    model, variables = built(-1e4)
    plain = CausalTransformer(**SIZES, sliding_window=3, precision="highest")
    rest = jax.tree.map(lambda leaf: leaf, variables)
    attention = rest["params"]["layers_0"]["self_attn"]
    del attention["sinks"]
    np.testing.assert_allclose(model.apply(variables, IDS), plain.apply(rest, IDS), atol=1e-6)
    attention["v_proj"]["kernel"] = jnp.zeros_like(attention["v_proj"]["kernel"])
    np.testing.assert_allclose(built(1e4)[0].apply(built(1e4)[1], IDS), plain.apply(rest, IDS), atol=1e-6)


def test_decoding_with_a_cache_gives_the_states_of_the_full_forward():
    model, variables = built(0.7)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
    valid, cache, found = np.ones((2, 6), bool), model.init_cache(2, 8), []
    for piece in (slice(0, 4), slice(4, 5), slice(5, 6)):
        given = IDS[:, piece], positions[:, piece], valid[:, piece], cache
        hidden, cache = model.apply(variables, *given, method="decode")
        found.append(hidden)
    full = model.apply(variables, IDS, method="hidden_states")
    np.testing.assert_allclose(np.concatenate(found, 1), full, atol=1e-5)


def test_sinks_of_latent_attention_are_refused():
    mixer = MLA(kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)
    with pytest.raises(ValueError, match="sinks=True with a mixer"):
        CausalTransformer(**SIZES, sinks=True, mixer=mixer)
