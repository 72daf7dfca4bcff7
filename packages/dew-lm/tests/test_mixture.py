"""The mixture of experts against its law in numpy float64: every router and block that it can be."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from dew.config import ModelConfig
from dew.nn.moe import (
    ClampedGate,
    ExpertGroups,
    Mixture,
    MixtureOfExperts,
    RouterRows,
    Routes,
    SharedExpert,
)
from dew.nn.sharding import unboxed

FOUR = Mixture(num_experts=4, top_k=2)
EIGHT = Mixture(num_experts=8, top_k=3, bias=True)
VARIANTS = {
    "mixtral": FOUR,
    "qwen3_moe": replace(FOUR, normalize=False),
    "qwen2_moe": replace(FOUR, normalize=False, shared=SharedExpert(intermediate_size=5, gated=True)),
    "deepseek_v2": replace(
        EIGHT,
        bias=False,
        normalize=False,
        scale=1.7,
        groups=ExpertGroups(count=4, keep=2),
        shared=SharedExpert(intermediate_size=5),
    ),
    "deepseek_v3": replace(
        EIGHT, scores="sigmoid", scale=1.7, groups=ExpertGroups(count=4, keep=2, rank="best_two")
    ),
    "gpt_oss": replace(FOUR, router_bias=True, expert_bias=True, gate=ClampedGate(alpha=1.5, limit=0.4)),
    "llama4": replace(
        FOUR,
        top_k=1,
        normalize=False,
        scores="sigmoid",
        weigh_inputs=True,
        shared=SharedExpert(intermediate_size=6),
    ),
}
ALTERED = [
    ("mixtral", {"normalize": False}),
    ("mixtral", {"top_k": 1}),
    ("mixtral", {"scores": "sigmoid"}),
    ("qwen3_moe", {"normalize": True}),
    ("qwen2_moe", {"shared": SharedExpert(intermediate_size=5)}),
    ("qwen2_moe", {"shared": None}),
    ("deepseek_v2", {"groups": None}),
    ("deepseek_v2", {"groups": ExpertGroups(count=4, keep=3)}),
    ("deepseek_v2", {"groups": ExpertGroups(count=2, keep=1)}),
    ("deepseek_v2", {"groups": ExpertGroups(count=4, keep=2, rank="best_two")}),
    ("deepseek_v2", {"scale": 1.0}),
    ("deepseek_v3", {"groups": ExpertGroups(count=4, keep=2)}),
    ("deepseek_v3", {"scores": "softmax"}),
    ("deepseek_v3", {"bias": False}),
    ("gpt_oss", {"gate": ClampedGate(alpha=1.5, limit=0.5)}),
    ("gpt_oss", {"gate": ClampedGate(alpha=1.0, limit=0.4)}),
    ("gpt_oss", {"gate": None}),
    ("gpt_oss", {"router_bias": False}),
    ("gpt_oss", {"expert_bias": False}),
    ("llama4", {"weigh_inputs": False}),
]
TOLERANCE = 1e-5
"""Ten times the largest difference of float32 from numpy's float64 at these sizes."""


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    wide = np.exp(x - x.max())
    return wide / wide.sum()


def chosen_experts(scores, bias, mixture):
    """The experts of one token, best first."""
    ranked = scores + bias
    if mixture.groups is not None:
        groups = ranked.reshape(mixture.groups.count, -1)
        two = 2 if mixture.groups.rank == "best_two" else 1
        strength = np.sort(groups, axis=1)[:, -two:].sum(1)
        kept = np.argsort(-strength, kind="stable")[: mixture.groups.keep]
        outside = ~np.isin(np.arange(mixture.groups.count), kept)
        ranked = np.where(outside[:, None], -np.inf, groups).ravel()
    return np.argsort(-ranked, kind="stable")[: mixture.top_k]


def expert(x, params, number, mixture):
    """What expert `number` makes of one token, silu-gated where the mixture has no gate of its own."""

    def projected(x, name):
        bias = params[f"bias_{name}"][number] if mixture.expert_bias else 0.0
        return x @ params[f"experts_{name}"][number] + bias

    gate, up = projected(x, "gate_proj"), projected(x, "up_proj")
    if mixture.gate is None:
        return projected(gate * sigmoid(gate) * up, "down_proj")
    limit = mixture.gate.limit
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return projected((up + 1) * gate * sigmoid(mixture.gate.alpha * gate), "down_proj")


def shared_part(x, params, mixture):
    if mixture.shared is None:
        return 0.0
    block = {name: params["shared_expert"][name]["kernel"] for name in ("gate_proj", "up_proj", "down_proj")}
    gate = x @ block["gate_proj"]
    out = (gate * sigmoid(gate) * (x @ block["up_proj"])) @ block["down_proj"]
    return out * sigmoid(x @ params["shared_expert_gate"]["kernel"]) if mixture.shared.gated else out


def by_hand(params, x, mixture, bias=0.0, routes=None):
    """[B, S, D] from float64 parameters; `routes` [B, S, K] replaces the router's choice."""
    out = np.zeros_like(x)
    for place in np.ndindex(x.shape[:2]):
        logits = x[place] @ params["gate"]["kernel"]
        if mixture.router_bias:
            logits = logits + params["gate"]["bias"]
        scores = softmax(logits) if mixture.scores == "softmax" else sigmoid(logits)
        chosen = chosen_experts(scores, bias, mixture) if routes is None else routes[place]
        weights = scores[chosen]
        weights = mixture.scale * (weights / weights.sum() if mixture.normalize else weights)
        for number, weight in zip(chosen, weights, strict=True):
            if mixture.weigh_inputs:
                out[place] += expert(weight * x[place], params, number, mixture)
            else:
                out[place] += weight * expert(x[place], params, number, mixture)
        out[place] += shared_part(x[place], params, mixture)
    return out


def drawn(mixture, rows=3):
    """A layer, float32 variables wide enough that every field bites, and its input."""
    layer = MixtureOfExperts(mixture, 6, precision="highest")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 7, 8)).astype(np.float32)
    made = unboxed(jax.eval_shape(layer.init, jax.random.key(0), x))
    return layer, jax.tree.map(lambda leaf: np.float32(0.5 * draw.standard_normal(leaf.shape)), made), x


def expected(mixture, variables, x, **given):
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)
    bias = wide["moe"]["gate"]["bias"] if mixture.bias else 0.0
    return by_hand(wide["params"], np.asarray(x, np.float64), mixture, bias, **given)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_token_gets_what_its_experts_make_of_it(variant):
    layer, variables, x = drawn(VARIANTS[variant])
    np.testing.assert_allclose(
        layer.apply(variables, x), expected(layer.mixture, variables, x), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize(("variant", "fields"), ALTERED, ids=lambda value: str(value))
def test_altering_a_field_moves_the_output_far_beyond_the_tolerance(variant, fields):
    layer, variables, x = drawn(VARIANTS[variant])
    other = expected(replace(layer.mixture, **fields), variables, x)
    assert np.abs(layer.apply(variables, x) - other).max() > 100 * TOLERANCE


@pytest.mark.parametrize("variant", ["mixtral", "gpt_oss", "llama4"])
def test_all_tokens_at_one_expert_lose_none(variant):
    layer, variables, x = drawn(VARIANTS[variant])
    kernel = np.zeros((8, 4), np.float32)
    kernel[:, 2] = 2.0
    variables["params"]["gate"]["kernel"] = kernel
    x = np.abs(x)
    np.testing.assert_allclose(
        layer.apply(variables, x), expected(layer.mixture, variables, x), rtol=1e-5, atol=1e-5
    )


def test_a_router_that_saturates_still_ranks_by_its_logits():
    layer, variables, x = drawn(VARIANTS["llama4"])
    variables["params"]["gate"]["kernel"] = np.zeros((8, 4), np.float32)
    variables["params"]["gate"]["kernel"][0] = [60.0, 80.0, 70.0, 50.0]
    x[..., 0] = 1.0
    routes = np.full((*x.shape[:2], 1), 1)
    np.testing.assert_allclose(
        layer.apply(variables, x),
        expected(layer.mixture, variables, x, routes=routes),
        atol=TOLERANCE,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_configuration_in_json_builds_the_same_mixture(variant):
    sizes = {"vocab_size": 32, "hidden_size": 8, "num_layers": 1, "num_heads": 2}
    record = json.loads(json.dumps(asdict(VARIANTS[variant])))
    config = ModelConfig("causal_transformer", config={**sizes, "mixture": record})
    assert config.build().mixture == VARIANTS[variant]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_experts": 0, "top_k": 1}, "num_experts=0"),
        ({"num_experts": 2, "top_k": 3}, "top_k=3 is above num_experts=2"),
        ({"num_experts": 2, "top_k": 1, "layers": (False,)}, "no layer"),
        ({"num_experts": 2, "top_k": 1, "scores": "tanh"}, "scores='tanh' must be"),
        ({"num_experts": 2, "top_k": 1, "scale": 0.0}, "scale=0.0 must be a finite number above 0"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Mixture(**fields)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ExpertGroups(count=2, keep=3), "keep=3 of count=2"),
        (lambda: ExpertGroups(count=2, keep=1, rank="mean"), "rank='mean' must be best or best_two"),
        (lambda: replace(EIGHT, groups=ExpertGroups(count=3, keep=1)), "count=3 must divide num_experts=8"),
        (lambda: replace(EIGHT, groups=ExpertGroups(count=4, keep=1)), "top_k=3 is above the 2 experts"),
        (
            lambda: replace(EIGHT, groups=ExpertGroups(count=8, keep=3, rank="best_two")),
            "'best_two' needs two experts a group",
        ),
        (lambda: SharedExpert(intermediate_size=0), "shared.intermediate_size=0"),
        (lambda: ClampedGate(limit=0.0), "gate.limit=0.0 must be a finite number above 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def drawn_routes(mixture, shape):
    """K different experts for every token, drawn, and which tokens they replace the router's for."""
    draw = np.random.default_rng(5)
    experts = np.argsort(draw.random((*shape, mixture.num_experts)), axis=-1)[..., : mixture.top_k]
    return experts, draw.random(shape) < 0.6


@pytest.mark.parametrize("variant", ["mixtral", "deepseek_v3", "gpt_oss", "llama4"])
def test_covered_tokens_go_where_the_record_says_with_the_weights_of_today(variant):
    layer, variables, x = drawn(VARIANTS[variant])
    experts, covered = drawn_routes(layer.mixture, x.shape[:2])
    found = layer.apply(variables, x, RouterRows(routes=Routes(experts, covered)))
    follows = np.where(covered[..., None], expected(layer.mixture, variables, x, routes=experts), 0)
    chooses = np.where(covered[..., None], 0, expected(layer.mixture, variables, x))
    np.testing.assert_allclose(found, follows + chooses, atol=TOLERANCE, rtol=0)


def test_a_record_without_a_mask_covers_every_token():
    layer, variables, x = drawn(FOUR)
    experts, _ = drawn_routes(FOUR, x.shape[:2])
    found = layer.apply(variables, x, RouterRows(routes=Routes(experts)))
    np.testing.assert_allclose(found, expected(FOUR, variables, x, routes=experts), atol=TOLERANCE, rtol=0)


def test_the_router_learns_the_weights_of_replayed_experts_alone():
    layer, variables, x = drawn(FOUR)
    own = x.astype(np.float64) @ variables["params"]["gate"]["kernel"].astype(np.float64)
    experts = np.argsort(own, axis=-1)[:1, :1, :2]
    routes = RouterRows(routes=Routes(experts))
    gradient = jax.grad(lambda v: layer.apply(v, x[:1, :1], routes).sum())(variables)
    by_expert = np.abs(gradient["params"]["gate"]["kernel"]).max(0)
    np.testing.assert_array_equal(by_expert > 0, np.isin(np.arange(4), experts))


@pytest.mark.parametrize("experts", [[1, 1], [-1, 0], [0, 4]])
def test_a_record_that_names_no_different_experts_gives_no_number(experts):
    layer, variables, x = drawn(FOUR)
    record, covered = np.zeros((*x.shape[:2], 2), np.int32), np.zeros(x.shape[:2], bool)
    record[1, 2], covered[1, 2] = experts, True
    found = layer.apply(variables, x, RouterRows(routes=Routes(record, covered)))
    np.testing.assert_array_equal(np.isnan(found).any(-1), covered)
