"""The attention logits a decoder reports, and a decoder trained with muonclip."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.config import ModelConfig, OptimConfig
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, LMRunConfig
from dew.objectives.lm.batch import SEGMENTS_KEY
from dew.objectives.lm.logits import logits_of
from dew.testing.devices import result_on_devices
from dew.training import Trainer
from dew.training.optim import build_optimizer

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_seq_len": 96}
TAU = 1.0


def decoder(**fields):
    return CausalTransformer(**{**SIZES, **fields})


def objective(length=12, **fields):
    return LMObjective(decoder(**fields), length, ema_decay=None, qk_stats=True)


def tokens(length=12, rows=3):
    return jax.random.randint(jax.random.key(5), (rows, length + 1), 0, 32)


def started(of):
    return unboxed(jax.jit(of.initializer)(jax.random.key(0)))


def reported(of, variables, batch, layer=0):
    _, aux = jax.jit(of.loss)(variables, batch, Step(step=0, key=jax.random.key(1)))
    return np.asarray(aux.qk_stats[f"layers_{layer}"]["self_attn"]["max_logits"][0])


def by_hand(variables, ids, *, key_heads, segments=None, window=None):
    """The largest logits of the first layer, in float64 from its weights: norm, projections, rotation."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    x = params["embed_tokens"]["embedding"][np.asarray(ids)]
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * params["layers_0"]["input_layernorm"]["scale"]
    rows, length = ids.shape
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(2) / 2)
    turned = []
    for name in ("q_proj", "k_proj"):
        heads = (x @ params["layers_0"]["self_attn"][name]["kernel"]).reshape(rows, length, -1, 4)
        a, b = heads[..., :2], heads[..., 2:]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turned.append(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))
    query, key = turned[0], np.repeat(turned[1], 4 // key_heads, axis=2)
    scores = np.einsum("bthd,bshd->bhts", query, key) / 2
    distance = np.arange(length)[:, None] - np.arange(length)
    seen = (distance >= 0) & (distance < (window or length))
    if segments is not None:
        seen = seen & (segments[:, :, None] == segments[:, None, :])[:, None]
    return np.where(seen, scores, -np.inf).max((2, 3))


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_reported_logits_are_those_of_the_projections(key_heads):
    of = objective(num_kv_heads=key_heads)
    variables, ids = started(of), tokens()
    expected = by_hand(variables, ids[:, :-1], key_heads=key_heads)
    np.testing.assert_allclose(reported(of, variables, {"text": ids}), expected, rtol=1e-5, atol=1e-6)


def test_windows_and_packed_documents_bound_what_is_reported():
    of = objective(sliding_window=3)
    variables, ids = started(of), tokens()
    segments = jnp.broadcast_to(1 + jnp.arange(13) // 5, ids.shape)
    found = reported(of, variables, {"text": ids, SEGMENTS_KEY: segments})
    expected = by_hand(variables, ids[:, :-1], key_heads=4, segments=np.asarray(segments[:, :-1]), window=3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_padding_asks_for_nothing():
    of = objective()
    variables, ids = started(of), tokens()
    variables = jax.tree.map(lambda leaf: 3 * leaf, variables)
    segments = jnp.broadcast_to((jnp.arange(13) < 4).astype(int), ids.shape)
    found = reported(of, variables, {"text": ids, SEGMENTS_KEY: segments})
    short = by_hand(variables, ids[:, :4], key_heads=4)
    np.testing.assert_allclose(found, np.maximum(short, 0), rtol=1e-5, atol=1e-6)
    assert (by_hand(variables, ids[:, :-1], key_heads=4, segments=np.asarray(segments[:, :-1])) > found).any()


@pytest.mark.parametrize("fields", [{"attention_impl": "xla"}, {"attention_impl": "auto"}, {"remat": True}])
def test_every_kernel_and_recomputation_report_the_same(fields):
    plain, other = objective(80, attention_impl="reference"), objective(80, **fields)
    variables, batch = started(plain), {"text": tokens(80)}
    expected = reported(plain, variables, batch, layer=1)
    np.testing.assert_allclose(reported(other, variables, batch, layer=1), expected, rtol=1e-5, atol=1e-6)


def test_reporting_changes_neither_loss_nor_gradient():
    quiet = LMObjective(decoder(), 12, ema_decay=None)
    variables, batch, step = started(quiet), {"text": tokens()}, Step(step=0, key=jax.random.key(1))

    def gradient(of):
        return jax.jit(jax.value_and_grad(lambda v: of.loss(v, batch, step)[0].total))(variables)

    jax.tree.map(np.testing.assert_array_equal, gradient(objective()), gradient(quiet))


def trained(of, batches, *, accumulation=1, rate=0.0):
    config = OptimConfig(optimizer="muonclip", learning_rate=rate, optimizer_opts={"tau": TAU, "ns_steps": 1})
    optimizer = build_optimizer(config, total_updates=4)
    trainer = Trainer(of, optimizer, key=jax.random.key(0), accumulation=accumulation)
    state, _, _ = trainer.place()
    step = trainer.compile(state, batches[0])
    for batch in batches:
        state = step(state, batch).state
    return state.params


@pytest.mark.parametrize("key_heads", [4, 2])
def test_a_commit_brings_every_head_of_the_first_layer_down_to_the_bound(key_heads):
    of, batch = objective(num_kv_heads=key_heads, num_layers=1), {"text": tokens()}
    before = reported(of, started(of), batch).max(0)
    after = reported(of, trained(of, [batch]), batch).max(0)
    assert (before > TAU).any()
    # The first layer's inputs do not depend on its queries and keys, so its logits scale by gamma exactly.
    np.testing.assert_allclose(after, np.minimum(before, TAU), rtol=1e-5)


def test_a_window_clips_as_its_rows_in_one_batch_do():
    of, ids = objective(num_layers=1), tokens(rows=4)
    whole = trained(of, [{"text": ids}])
    parts = trained(of, [{"text": ids[:2]}, {"text": ids[2:]}], accumulation=2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, parts)


def test_the_largest_logit_is_a_metric():
    of, batch = objective(), {"text": tokens()}
    variables = started(of)
    _, aux = jax.jit(of.loss)(variables, batch, Step(step=0, key=jax.random.key(1)))
    largest = max(reported(of, variables, batch, layer).max() for layer in (0, 1))
    np.testing.assert_allclose(aux.metrics["max_logit"], largest, rtol=1e-6)


def test_validation_opens_no_collection():
    of = objective()
    assert of.token_scores(started(of), tokens()).qk_stats is None


def test_norms_of_queries_and_keys_are_refused_by_name():
    with pytest.raises(ValueError, match=r"with qk_norm=True the norms"):
        objective(qk_norm=True)


def test_a_configuration_with_muonclip_reports_logits_and_the_others_do_not():
    config = LMRunConfig.starting_point()
    assert not config.build().reports_logits
    clipping = dataclasses.replace(config, optim=OptimConfig(optimizer="muonclip"))
    assert clipping.build().reports_logits


def test_a_normalizing_model_with_muonclip_is_refused_before_the_run():
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "qk_norm": True}
    config = LMRunConfig.starting_point()
    config = dataclasses.replace(
        config,
        model=ModelConfig("causal_transformer", config=sizes),
        optim=OptimConfig(optimizer="muonclip"),
        sample_tokens=0,
    )
    with pytest.raises(ValueError, match="qk_norm=True"):
        config.build()


@pytest.mark.slow
def test_twenty_updates_are_equal_on_every_mesh_and_exchange_each_matrix_once():
    found = result_on_devices(str(Path(__file__).with_name("muonclip_on_eight.py")))
    assert len(found["gaps"]) == 2 and max(found["gaps"].values()) < 1e-12, found["gaps"]  # float64
    assert max(found["logits"][1:]) > 1.5, "the clip acted after the first update"
    assert found["one"] == found["five"]
    assert {kind for kind, _ in found["five"]} == {"all-gather"}


def test_a_model_that_reports_no_logits_is_refused():
    with pytest.raises(ValueError, match=r"sow max_logits into 'qk'; set it to False"):
        logits_of({})
