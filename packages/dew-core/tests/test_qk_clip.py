"""QK-Clip against the paper's algorithm by hand, and when its observations count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig, RunConfig
from dew.objectives.base import Aux, Mean, Objective
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.launch import optimizer_of
from dew.training.observations import head_maxima
from dew.training.optim import build_optimizer
from dew.training.optim.qk_clip import qk_clip

HEADS, WIDTH = 4, 2


def attention(key_heads=HEADS, bias=False):
    """Parameters of one attention layer and a matrix beside it."""
    sizes = {"q_proj": HEADS * WIDTH, "k_proj": key_heads * WIDTH, "v_proj": key_heads * WIDTH}
    layer = {
        name: {
            "kernel": 1 + jnp.arange(3.0 * size).reshape(3, size),
            **({"bias": jnp.ones(size)} if bias else {}),
        }
        for name, size in sizes.items()
    }
    return {"layers_0": {"self_attn": layer, "mlp": {"kernel": jnp.ones((3, 3))}}}


def stats(*maxima):
    return {"layers_0": {"self_attn": {"max_logits": jnp.asarray(maxima)}}}


def clipped(params, maxima, tau=10.0, updates=None):
    updates = jax.tree.map(jnp.zeros_like, params) if updates is None else updates
    clip = qk_clip(tau)
    changes, _ = clip.update(updates, clip.init(params), params, qk_stats=maxima)
    return optax.apply_updates(params, changes)["layers_0"]


def columns(*factors):
    return np.repeat(np.asarray(factors), WIDTH)


def test_a_head_of_its_own_is_scaled_by_the_root_on_both_sides():
    params = attention(bias=True)
    after, before = (
        clipped(params, stats(40.0, 10.0, 5.0, 90.0))["self_attn"],
        params["layers_0"]["self_attn"],
    )
    each = columns(0.5, 1.0, 1.0, 1 / 3)  # sqrt(10 / 40), and sqrt(10 / 90)
    for name in ("q_proj", "k_proj"):
        np.testing.assert_allclose(after[name]["kernel"], each * before[name]["kernel"], rtol=1e-6)
        np.testing.assert_allclose(after[name]["bias"], each, rtol=1e-6)


def test_queries_that_share_a_key_head_take_the_whole_factor_and_the_key_stays():
    params = attention(key_heads=2)
    after, before = (
        clipped(params, stats(40.0, 10.0, 5.0, 100.0))["self_attn"],
        params["layers_0"]["self_attn"],
    )
    each = columns(0.25, 1.0, 1.0, 0.1)
    np.testing.assert_allclose(after["q_proj"]["kernel"], each * before["q_proj"]["kernel"], rtol=1e-6)
    np.testing.assert_array_equal(after["k_proj"]["kernel"], before["k_proj"]["kernel"])


def test_values_and_other_matrices_are_left_alone():
    params = attention()
    after, before = clipped(params, stats(40.0, 40.0, 40.0, 40.0)), params["layers_0"]
    np.testing.assert_array_equal(
        after["self_attn"]["v_proj"]["kernel"], before["self_attn"]["v_proj"]["kernel"]
    )
    np.testing.assert_array_equal(after["mlp"]["kernel"], before["mlp"]["kernel"])


@pytest.mark.parametrize("maxima", [None, stats(10.0, -3.0, 0.0, 9.9)])
def test_updates_pass_bit_for_bit_where_no_head_is_above(maxima):
    params = attention()
    updates = jax.tree.map(lambda leaf: jnp.cos(leaf) / 3, params)
    clip = qk_clip(10.0)
    changes, _ = clip.update(updates, clip.init(params), params, qk_stats=maxima)
    jax.tree.map(np.testing.assert_array_equal, changes, updates)


def test_the_factor_acts_on_the_parameters_as_the_update_leaves_them():
    params = attention()
    updates = jax.tree.map(jnp.ones_like, params)
    after = clipped(params, stats(40.0, 40.0, 40.0, 40.0), updates=updates)["self_attn"]["q_proj"]["kernel"]
    np.testing.assert_allclose(
        after, 0.5 * (params["layers_0"]["self_attn"]["q_proj"]["kernel"] + 1), rtol=1e-6
    )


def test_parameters_without_queries_and_keys_are_refused():
    with pytest.raises(ValueError, match="'muonclip' rescales whole"):
        built(tau=1.0).init({"layer": {"kernel": jnp.ones((2, 2))}})


def test_an_adapters_factors_are_no_kernels():
    factors = {"self_attn": {name: {"lora_a": jnp.ones((2, 2))} for name in ("q_proj", "k_proj")}}
    with pytest.raises(ValueError, match=r"with lora they are factors.*use 'muon'"):
        built(tau=1.0).init(factors)


def test_a_layer_whose_kernels_are_not_trained_is_refused():
    params = attention()
    clip = qk_clip(1.0)
    reported = {"layers_1": stats(1.0)["layers_0"]}
    with pytest.raises(ValueError, match=r"1 heads of layers_1/self_attn, .* 0 and 0 columns"):
        clip.update(params, clip.init(params), params, qk_stats=reported)


def latent(query="q_b_proj", still=3, turning=2, value=2):
    """Parameters of latent attention with two heads."""
    sizes = {query: 2 * (still + turning), "kv_b_proj": 2 * (still + value), "o_proj": 4}
    layer = {name: {"kernel": 1 + jnp.arange(2.0 * size).reshape(2, size)} for name, size in sizes.items()}
    return {"layers_0": {"self_attn": layer}}


@pytest.mark.parametrize("query", ["q_b_proj", "q_proj"])
def test_latent_attention_takes_the_root_where_heads_do_not_turn_and_the_whole_where_queries_do(query):
    params = latent(query)
    reported = stats(40.0, 10.0)
    reported["layers_0"]["self_attn"]["qk_nope"] = jnp.asarray(3)
    after, before = clipped(params, reported)["self_attn"], params["layers_0"]["self_attn"]
    factors = {
        query: [0.5] * 3 + [0.25] * 2 + [1.0] * 5,
        "kv_b_proj": [0.5] * 3 + [1.0] * 2 + [1.0] * 5,
        "o_proj": [1.0] * 4,
    }
    for name, each in factors.items():
        np.testing.assert_allclose(after[name]["kernel"], np.array(each) * before[name]["kernel"], rtol=1e-6)


def test_the_logits_of_latent_attention_shrink_by_the_factor():
    params = latent()["layers_0"]["self_attn"]
    reported = {"layers_0": {"self_attn": {"max_logits": jnp.array([40.0, 10.0]), "qk_nope": jnp.asarray(3)}}}
    after = clipped({"layers_0": {"self_attn": params}}, reported)["self_attn"]

    def logits(layer):
        x, latent, shared = np.array([1.0, -2.0]), np.array([0.5, 2.0]), np.array([1.5, -1.0])
        query = (x @ layer["q_b_proj"]["kernel"]).reshape(2, 5)
        still = (latent @ layer["kv_b_proj"]["kernel"]).reshape(2, 5)[:, :3]
        return np.sum(query[:, :3] * still, axis=-1) + query[:, 3:] @ shared

    np.testing.assert_allclose(logits(after), np.array([0.25, 1.0]) * logits(params), rtol=1e-5)


def test_a_width_that_does_not_turn_passes_through_a_window():
    reported = {"a": {"max_logits": (jnp.ones((2, 3)),), "qk_nope": jnp.asarray(3)}}
    merged = head_maxima(reported)
    assert int(merged["a"]["qk_nope"]) == 3 and merged["a"]["qk_nope"].dtype == jnp.int32


def test_a_report_that_is_none_of_attentions_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'sinks' of layers_0/self_attn"):
        head_maxima({"layers_0": {"self_attn": {"sinks": (jnp.asarray(3),)}}})


def test_rows_merge_by_their_largest():
    rows = jnp.array([[1.0, 7.0], [5.0, 2.0]])
    merged = head_maxima({"a": {"max_logits": (rows,)}})
    np.testing.assert_array_equal(merged["a"]["max_logits"], [5.0, 7.0])


class Heads(Objective):
    """A loss linear in every parameter, whose attention logits are the batch's."""

    reports_logits = True

    def __init__(self, *, composite=False):
        self.composite = composite

    def init(self, key, variables=None):
        return {"params": attention()}

    def loss(self, params, batch, step):
        total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params["params"]))
        rows = {"layers_0": {"self_attn": {"max_logits": (batch["logits"],)}}}
        stats = Mean(total * jnp.sum(batch["g"]), jnp.asarray(1.0))
        return ((stats,) if self.composite else stats), Aux(qk_stats=rows)

    def reduce_loss(self, stats):
        return super().reduce_loss(stats[0] if self.composite else stats)

    @property
    def reduces_means_to_ratios(self):
        return not self.composite


def built(tau, **options):
    config = OptimConfig(optimizer="muonclip", learning_rate=0.0, optimizer_opts={"tau": tau, **options})
    return build_optimizer(config, total_updates=4)


def queries_after(logits, *, accumulation, gradients=None, composite=False):
    """The mean factor of each head's query kernel after attempts with these logits, at rate 0 and tau 10."""
    trainer = Trainer(
        Heads(composite=composite), built(10.0), key=jax.random.key(0), accumulation=accumulation
    )
    state, _, _ = trainer.place()
    gradients = [1.0] * len(logits) if gradients is None else gradients
    batches = [
        {"logits": jnp.asarray(each, jnp.float32).reshape(-1, HEADS), "g": jnp.full(1, g)}
        for each, g in zip(logits, gradients, strict=True)
    ]
    step = trainer.compile(state, batches[0])
    for batch in batches:
        state = step(state, batch).state
    ratio = (
        state.params["params"]["layers_0"]["self_attn"]["q_proj"]["kernel"]
        / (attention()["layers_0"]["self_attn"]["q_proj"]["kernel"])
    )
    return np.asarray(ratio.mean(0).reshape(HEADS, WIDTH).mean(1))


HOT, COLD = [40.0, 5.0, 5.0, 5.0], [5.0, 5.0, 5.0, 90.0]


@pytest.mark.parametrize("composite", [False, True], ids=["mean", "composite"])
def test_the_largest_of_a_window_counts_once_at_its_commit(composite):
    found = queries_after([HOT, COLD], accumulation=2, composite=composite)
    np.testing.assert_allclose(found, [0.5, 1, 1, 1 / 3], rtol=1e-5)


def test_an_unfinished_window_clips_nothing():
    np.testing.assert_array_equal(queries_after([HOT], accumulation=2), np.ones(HEADS))


def test_a_window_forgets_the_one_before():
    calm = [1.0] * HEADS
    found = queries_after([HOT, calm, calm, calm], accumulation=2)
    np.testing.assert_allclose(found, [0.5, 1, 1, 1], rtol=1e-5)


def test_a_window_cut_by_a_checkpoint_remembers_its_logits(tmp_path):
    rows = {"logits": np.array([HOT, COLD], "f4"), "g": np.ones(2, "f4")}

    def fit(steps, checkpoints=None):
        trainer = Trainer(
            Heads(), built(10.0), key=jax.random.key(0), accumulation=2, checkpoints=checkpoints
        )
        return trainer.fit(in_memory(rows, batch=1), steps=steps).params["params"]

    fit(1, Checkpoints(tmp_path / "checkpoints"))
    resumed = fit(2, Checkpoints(tmp_path / "checkpoints"))
    jax.tree.map(np.testing.assert_array_equal, resumed, fit(2))
    found, start = (tree["layers_0"]["self_attn"]["q_proj"]["kernel"] for tree in (resumed, attention()))
    np.testing.assert_allclose((found / start)[0, ::WIDTH], [0.5, 1, 1, 1 / 3], rtol=1e-5)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_rejected_attempt_does_not_count(accumulation):
    calm = [1.0] * HEADS
    found = queries_after([HOT, calm, calm], accumulation=accumulation, gradients=[np.nan, 1.0, 1.0])
    np.testing.assert_array_equal(found, np.ones(HEADS))


def test_an_objective_without_logits_is_refused_by_name(toys):
    config = RunConfig(data=object(), optim=OptimConfig(optimizer="muonclip"))
    with pytest.raises(
        ValueError, match=r"'muonclip' clips by attention logits, and Regression reports none"
    ):
        optimizer_of(config, toys.Regression(), updates=2)
