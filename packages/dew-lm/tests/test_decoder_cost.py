"""The decoder's model FLOPs, against values computed by hand and against the traced products."""

import jax
import jax.numpy as jnp
import pytest

from dew.lora import LoRA
from dew.lora.objective import adapted
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.cost import active_weights, seen_keys
from dew.nn.moe import Mixture
from dew.objectives.base import under
from dew.objectives.lm import LMObjective
from dew.testing.products import multiply_adds

SIZES = dict(
    vocab_size=97,
    hidden_size=64,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_seq_len=40,
)
S = 40


def decoder(**changed):
    return CausalTransformer(**SIZES, attention_impl="reference", **changed)


def per_token(model, **options):
    cost = LMObjective(model, S, **options).step_cost({"text": jnp.zeros((3, S + 1), jnp.int32)})
    return cost.flops / (3 * S)


@pytest.mark.parametrize(
    ("changed", "weights", "flops"),
    [
        ({}, 129_088, 837_504),
        ({"causal": False}, 129_088, 897_408),
        ({"sliding_window": 5}, 129_088, 789_120),
        ({"attention_chunk_size": 5}, 129_088, 783_744),
        ({"mixture": Mixture(num_experts=6, top_k=2)}, 204_352, 1_289_088),
        ({"tie_embeddings": True}, 129_088, 837_504),
    ],
)
def test_flops_of_a_token_are_the_hand_computed_ones(changed, weights, flops):
    """4 layers of 12,288 in attention and 18,432 in the block (two of six and a router of 384), a head of
    6,208; 4 x 6 x 4 x 32 for each key of the 20.5, 40, 4.75 or 3 that a query sees."""
    model = decoder(**changed)
    assert active_weights(model) == weights
    assert 6 * model.forward_macs(S) / S == flops


def test_the_objective_counts_its_rows_forward_and_backward():
    assert per_token(decoder()) == 837_504
    assert (
        LMObjective(decoder(dtype=jnp.bfloat16), S).step_cost({"text": jnp.zeros((1, 41))}).dtype
        == "bfloat16"
    )


def test_a_forward_pass_traces_to_the_counted_products():
    """Traced products know no causal half: they are those of full attention."""
    model = decoder(activation="relu2", causal=False)
    tokens = jnp.zeros((2, S), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    assert multiply_adds(model.apply, variables, tokens) == 2 * model.forward_macs(S)


def test_keys_seen_under_a_window_by_counting():
    for length, window in ((7, 3), (3, 7), (5, 5), (4, 1)):
        counted = sum(min(index + 1, window) for index in range(length))
        assert seen_keys(length, window, causal=True) == counted


def test_keys_seen_in_chunks_by_counting():
    for length, chunk, window in ((7, 3, None), (6, 3, 2), (5, 9, 4), (9, 4, 7)):
        span = length if window is None else window
        counted = sum(min(index % chunk + 1, span) for index in range(length))
        assert seen_keys(length, window, causal=True, chunk=chunk) == counted


def test_what_trains_in_part_has_no_count():
    batch = {"text": jnp.zeros((1, S + 1), jnp.int32)}
    partial = LMObjective(decoder(), S, trainable=under("params", "norm"))
    assert partial.step_cost(batch) is None
    assert adapted(LMObjective(decoder(), S), LoRA(("q_proj",), rank=2)).step_cost(batch) is None
