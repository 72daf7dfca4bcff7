"""Latent attention as a decoder's mixer: caches, documents, statistics, costs, adapters, refusals."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dew.config import ModelConfig, OptimConfig
from dew.lora import LoRA
from dew.lora.objective import adapted
from dew.nn.attention import scaled_dot_product_attention
from dew.nn.backbones.causal_transformer import MLA, CausalTransformer
from dew.nn.backbones.causal_transformer.config import Rotary, Temperature
from dew.nn.backbones.causal_transformer.cost import active_weights
from dew.nn.backbones.causal_transformer.indexer import Index, index_scores, selected_keys
from dew.nn.frequencies import attention_factor, score_factor
from dew.nn.rotary_scaling import RotaryScaling
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective
from dew.training import Trainer
from dew.training.optim import build_optimizer
from dew.training.optim.matrices import axis_names, sides

WIDTHS = {
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "q_lora_rank": 10,
}
INDEXED = {"index_n_heads": 8, "index_head_dim": 6, "index_topk": 5}
SIZES = {"vocab_size": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_seq_len": 24}
T = 16
IDS = np.random.default_rng(0).integers(0, 32, (2, T)).astype(np.int32)
KINDS = {"dense": {}, "plain queries": {"q_lora_rank": None}, "sparse": INDEXED}


def decoder(mixer=None, **fields):
    given = {"intermediate_size": 24, "precision": "highest", **SIZES, **fields}
    return CausalTransformer(**given, mixer=MLA(**{**WIDTHS, **(mixer or {})}))


@functools.cache
def drawn(kind):
    """Weights wide enough that heads differ."""
    variables = unboxed(jax.jit(decoder(KINDS[kind]).init)(jax.random.key(0), IDS[:, :1]))
    return jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim > 1 else leaf, variables)


def hidden(model, variables, ids, **fields):
    read = functools.partial(model.apply, method="hidden_states", **fields)
    return np.asarray(jax.jit(read)(variables, ids))


def generated(model, variables, ids, cuts, capacity=T):
    """The states of a prompt and of what follows, piece by piece through the cache."""
    cache = model.init_cache(2, capacity)
    step = jax.jit(functools.partial(model.apply, method="decode"))
    states = []
    for first, last in itertools.pairwise(cuts):
        places = np.broadcast_to(np.arange(first, last), (2, last - first))
        valid = np.ones(places.shape, bool)
        state, cache = step(variables, ids[:, first:last], places, valid, cache)
        states.append(np.asarray(state))
    return np.concatenate(states, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_and_single_steps_through_the_cache_give_the_states_of_the_whole_row(kind):
    model, variables = decoder(KINDS[kind]), drawn(kind)
    whole = hidden(model, variables, IDS)
    cached = generated(model, variables, IDS, [0, 13, 14, 15, 16])
    np.testing.assert_allclose(cached, whole, atol=2e-5)


def test_a_step_attends_to_latent_vectors_and_a_prompt_to_expanded_keys():
    model = decoder()
    layer = model.bind(drawn("dense")).layers[0].self_attn
    assert layer._absorbs(1, T) and not layer._absorbs(T, T)


@pytest.mark.parametrize(("kind", "width"), [("dense", 12 + 4), ("sparse", 12 + 4 + 6)])
def test_the_cache_keeps_one_latent_vector_and_one_turned_key_a_token(kind, width):
    model = decoder(KINDS[kind])
    cache = jax.eval_shape(lambda: model.init_cache(3, T))
    each = {sum(math.prod(leaf.shape) for leaf in layer.values()) for layer in cache.values()}
    assert each == {3 * T * width} and model.mixer.cached_width == width


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_document_in_a_packed_row_is_what_it_is_alone(kind):
    model, variables = decoder(KINDS[kind]), drawn(kind)
    segments = np.broadcast_to(np.repeat([1, 2], [7, 9]), IDS.shape)
    positions = np.broadcast_to(np.r_[np.arange(7), np.arange(9)], IDS.shape)
    packed = hidden(model, variables, IDS, segment_ids=segments, positions=positions)
    np.testing.assert_allclose(packed[:, 7:], hidden(model, variables, IDS[:, 7:]), atol=1e-5)
    other = np.where(segments == 1, (IDS + 5) % 32, IDS)
    edited = hidden(model, variables, other, segment_ids=segments, positions=positions)
    np.testing.assert_array_equal(edited[:, 7:], packed[:, 7:])


def test_a_query_attends_to_its_best_keys_alone():
    scores = jnp.asarray([[[0.5, 0.0, 0.0, 9.0], [3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 1.0, 0.0]]])
    allowed = jnp.asarray([[True, True, True, False]])[:, None, None]
    seen = selected_keys(scores, jnp.broadcast_to(allowed, (1, 1, 3, 4)), 2)
    expected = [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]]
    np.testing.assert_array_equal(seen[0].astype(int), expected)


def test_fewer_allowed_keys_than_are_chosen_are_all_that_is_seen():
    causal = jnp.tril(jnp.ones((3, 3), bool))[None, None]
    seen = selected_keys(jnp.zeros((1, 3, 3)), causal, 2)
    np.testing.assert_array_equal(seen[0].astype(int), [[1, 0, 0], [1, 1, 0], [1, 1, 0]])


def test_index_scores_head_by_head_are_those_of_all_heads_at_once(monkeypatch):
    draw = np.random.default_rng(1)
    query, weights, keys = (
        draw.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4, 6), (2, 3, 4), (2, 5, 6))
    )
    expected = np.einsum("btj,btjs->bts", weights, np.maximum(np.einsum("btjd,bsd->btjs", query, keys), 0))
    index = Index(jnp.asarray(query), jnp.asarray(keys), jnp.asarray(weights))
    for limit in (2**24, 1):
        monkeypatch.setattr("dew.nn.backbones.causal_transformer.indexer.WHOLE", limit)
        found = index_scores(index, index.key, precision="highest")
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("factor", "weight", "expected"), [(40, 0.707, 1.59), (40, 1.0, 1.87), (4, 0.707, 1.2056)]
)
def test_yarn_corrects_cosines_by_a_quotient_and_scores_by_a_square(factor, weight, expected):
    yarn = {"kind": "yarn", "factor": factor, "original_length": 64}
    both = RotaryScaling(**yarn, mscale=weight, mscale_all_dim=weight)
    assert attention_factor(both) == 1
    assert score_factor(both) == pytest.approx(expected, abs=5e-3)
    assert score_factor(both) == pytest.approx((0.1 * weight * math.log(factor) + 1) ** 2, rel=1e-12)
    stated = RotaryScaling(**yarn, mscale=weight, mscale_all_dim=weight, attention_factor=1.3)
    assert attention_factor(stated) == 1.3 and score_factor(stated) == score_factor(both)
    assert score_factor(RotaryScaling(**yarn)) == score_factor(None) == 1


def test_only_a_mixer_multiplies_the_scores():
    yarn = RotaryScaling(kind="yarn", factor=4.0, original_length=8, mscale=0.707, mscale_all_dim=0.707)
    latent = decoder(rotary=Rotary(scaling=yarn)).plans[0].scale
    assert latent == pytest.approx(12**-0.5 * (0.1 * 0.707 * math.log(4) + 1) ** 2, rel=1e-12)
    plain = CausalTransformer(**SIZES, rotary=Rotary(scaling=yarn)).plans[0].scale
    assert plain == 4**-0.5


@pytest.mark.slow
def test_recomputed_layers_have_the_same_gradient():
    def gradient(**fields):
        model = decoder(INDEXED, **fields)
        return jax.jit(jax.grad(lambda tree: jnp.sum(jnp.sin(model.apply(tree, IDS)))))(drawn("sparse"))

    kept, again = flatten_dict(gradient(), sep="/"), flatten_dict(gradient(remat=True), sep="/")
    for name, leaf in kept.items():
        np.testing.assert_allclose(again[name], leaf, atol=1e-4 * float(jnp.abs(leaf).max()) + 1e-9)


@pytest.mark.parametrize("implementation", ["xla", "auto"])
@pytest.mark.parametrize("width", [6, 20])
def test_kernels_agree_where_values_have_a_width_of_their_own(implementation, width):
    draw = np.random.default_rng(2)
    query, key = (jnp.asarray(draw.standard_normal((2, 70, 4, 12)), jnp.float32) for _ in range(2))
    value = jnp.asarray(draw.standard_normal((2, 70, 4, width)), jnp.float32)

    def mixed(kernel):
        return jax.value_and_grad(
            lambda v: jnp.sum(
                jnp.sin(scaled_dot_product_attention(query, key, v, causal=True, implementation=kernel))
            )
        )

    for one, other in zip(mixed("reference")(value), mixed(implementation)(value), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_largest_logits_are_those_of_expanded_keys_and_name_the_still_width():
    objective = LMObjective(decoder(), T - 1, ema_decay=None, qk_stats=True)
    step = Step(step=0, key=jax.random.key(1))
    variables = drawn("dense")
    _, aux = jax.jit(objective.loss)(variables, {"text": IDS}, step)
    told = aux.qk_stats["layers_0"]["self_attn"]
    assert int(told["qk_nope"]) == 8 and told["max_logits"][0].shape == (2, 4)
    assert float(aux.metrics["max_logit"]) == pytest.approx(
        max(float(np.max(layer["self_attn"]["max_logits"][0])) for layer in aux.qk_stats.values())
    )
    layer = decoder().bind(variables).layers[0]
    x = layer.input_layernorm(variables["params"]["embed_tokens"]["embedding"][IDS[:, :-1]])
    parts = layer.self_attn._project(x, decoder().bind(variables)._places(jnp.arange(T - 1)[None]))
    key, _ = layer.self_attn._expanded(parts.latent, parts.turned)
    scores = np.einsum("bthd,bshd->bhts", np.asarray(parts.query, float), np.asarray(key, float)) / 12**0.5
    scores = np.where(np.tril(np.ones((T - 1, T - 1), bool)), scores, -np.inf)
    np.testing.assert_allclose(told["max_logits"][0], scores.max((2, 3)), rtol=1e-4)


@pytest.mark.slow
def test_muonclip_bounds_every_logit_of_latent_attention_after_an_update():
    objective = LMObjective(decoder(num_layers=1), T - 1, ema_decay=None, qk_stats=True)
    axes = axis_names(jax.eval_shape(objective.initializer, jax.random.key(0)))
    optim = OptimConfig(optimizer="muonclip", learning_rate=1e-9, optimizer_opts={"tau": 0.2})
    trainer = Trainer(objective, build_optimizer(optim, total_updates=3, axes=axes), key=jax.random.key(0))
    state, _, _ = trainer.place()
    batch = {"text": jnp.asarray(IDS)}
    step = trainer.compile(state, batch)
    first = step(state, batch)
    second = step(first.state, batch)
    assert float(first.metrics["max_logit"]) > 0.4
    assert float(second.metrics["max_logit"]) == pytest.approx(0.2, rel=1e-4)


def test_every_projection_is_a_matrix_with_named_axes():
    boxed = jax.eval_shape(decoder(INDEXED).init, jax.random.key(0), IDS[:, :1])
    names = axis_names(boxed)
    attention = {path: axes for path, axes in names.items() if "layers_0/self_attn" in path}
    kernels = {path: axes for path, axes in attention.items() if path.endswith("kernel")}
    assert len(kernels) == 5 + 3
    assert all(sides(axes) is not None for axes in kernels.values())
    assert names["params/layers_0/self_attn/kv_b_proj/kernel"] == ("latent", "heads")


def test_costs_are_the_hand_computed_ones():
    # Queries 16 x 10 + 10 x 48, keys 16 x 16, expansion 12 x 56, output 24 x 16; the block 3 x 16 x 24.
    dense = 16 * 10 + 10 * 48 + 16 * 16 + 12 * 56 + 24 * 16
    rest = 2 * 3 * 16 * 24 + 16 * 32
    assert active_weights(decoder()) == 2 * dense + rest
    assert decoder().forward_macs(T) == T * (2 * dense + rest) + 2 * 4 * (12 + 6) * (T * (T + 1) // 2)
    indexer = 10 * 8 * 6 + 16 * 6 + 16 * 8
    chosen = 5 * 6 // 2 + (T - 5) * 5
    pairs = 4 * (12 + 6) * chosen + 8 * 6 * (T * (T + 1) // 2)
    assert decoder(INDEXED).forward_macs(T) == T * (2 * (dense + indexer) + rest) + 2 * pairs


@pytest.mark.slow
def test_an_adapter_of_the_expansion_is_heard_in_every_step():
    lora = LoRA(targets=("kv_b_proj",), rank=2)
    objective = adapted(LMObjective(decoder(), T - 1, ema_decay=None), lora)
    variables = unboxed(objective.init(jax.random.key(0)))
    moved = jax.tree.map(lambda leaf: leaf + 0.3, variables["params"])
    task = objective.policy({**variables, "params": moved})
    model, whole = task.model, task.variables
    np.testing.assert_allclose(
        generated(model, whole, IDS, [0, 14, 15, 16]), hidden(model, whole, IDS), atol=2e-5
    )
    assert np.abs(hidden(model, whole, IDS) - hidden(decoder(), drawn("dense"), IDS)).max() > 0.1


def test_a_mixer_is_built_from_json_and_written_to_it():
    fields = {**SIZES, "mixer": {**WIDTHS, **INDEXED}}
    config = ModelConfig("causal_transformer", config=json.loads(json.dumps(fields)), dtype="float32")
    model = config.build()
    assert model.mixer == MLA(**WIDTHS, **INDEXED)
    record = json.loads(json.dumps(dataclasses.asdict(config)))
    assert ModelConfig.from_dict(record).build().mixer == model.mixer


@pytest.mark.parametrize(
    ("mixer", "fields", "message"),
    [
        ({"kv_lora_rank": 0}, {}, "kv_lora_rank=0 must be at least 1"),
        ({"qk_rope_head_dim": 3}, {}, "qk_rope_head_dim=3 must be even"),
        ({"index_n_heads": 4}, {}, "index_n_heads=4 and index_head_dim=None go together"),
        ({"index_topk": 4}, {}, "index_topk=4 is chosen by an indexer"),
        ({**INDEXED, "q_lora_rank": None}, {}, "index_n_heads needs q_lora_rank"),
        ({**INDEXED, "index_head_dim": 2}, {}, "index_head_dim=2 must be at least qk_rope_head_dim=4"),
        ({}, {"num_kv_heads": 2}, "num_kv_heads=2 with a mixer"),
        ({}, {"head_dim": 16}, "head_dim=16 is not the mixer's"),
        ({}, {"qk_norm": True}, "qk_norm=True with a mixer"),
        ({}, {"attention_temperature": Temperature()}, r"attention_temperature=.* with a mixer"),
        ({}, {"rotary": Rotary(fraction=0.5)}, "rotary.fraction=0.5 with a mixer"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(mixer, fields, message):
    with pytest.raises(ValueError, match=message):
        decoder(mixer, **fields)
