"""Mixtures of experts against transformers' modules: outputs and gradients, from a golden file and live."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.moe import ClampedGate, ExpertGroups, Mixture, MixtureOfExperts, SharedExpert
from dew.nn.sharding import unboxed

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_mixture_golden", ROOT / "tools/make_mixture_golden.py")
assert SPEC is not None and SPEC.loader is not None
golden = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden)

FOUR = Mixture(num_experts=4, top_k=2)
EIGHT = Mixture(num_experts=8, top_k=3, scale=1.7, shared=SharedExpert(intermediate_size=12))
SIGMOID = replace(EIGHT, scores="sigmoid", bias=True, groups=ExpertGroups(count=4, keep=2, rank="best_two"))
CASES = {
    "mixtral": FOUR,
    "qwen2_moe": replace(FOUR, normalize=False, shared=SharedExpert(intermediate_size=5, gated=True)),
    "qwen3_moe": replace(FOUR, normalize=False),
    "deepseek_v2": replace(EIGHT, normalize=False, groups=ExpertGroups(count=4, keep=2)),
    "deepseek_v3": SIGMOID,
    "glm4_moe": replace(SIGMOID, normalize=False),
    "gpt_oss": replace(FOUR, router_bias=True, expert_bias=True, gate=ClampedGate(limit=golden.LIMIT)),
    "llama4": replace(
        FOUR,
        top_k=1,
        normalize=False,
        scores="sigmoid",
        weigh_inputs=True,
        shared=SharedExpert(intermediate_size=6),
    ),
}
OUTPUTS, GRADIENTS = 5e-5, 3e-5
"""Ten times the largest difference of float32 from float64 here; gradients relative to a leaf's largest."""
ALTERED = [
    ("mixtral", {"top_k": 1}),
    ("mixtral", {"normalize": False}),
    ("qwen2_moe", {"shared": SharedExpert(intermediate_size=5)}),
    ("qwen3_moe", {"normalize": True}),
    ("deepseek_v2", {"groups": None}),
    ("deepseek_v2", {"groups": ExpertGroups(count=4, keep=2, rank="best_two")}),
    ("deepseek_v2", {"scale": 1.0}),
    ("deepseek_v3", {"groups": ExpertGroups(count=4, keep=2)}),
    ("deepseek_v3", {"scores": "softmax"}),
    ("deepseek_v3", {"bias": False}),
    ("glm4_moe", {"normalize": True}),
    ("gpt_oss", {"gate": ClampedGate(limit=0.5)}),
    ("gpt_oss", {"gate": ClampedGate(alpha=1.6, limit=golden.LIMIT)}),
    ("llama4", {"weigh_inputs": False}),
]


def computed(mixture):
    """`out` and the gradients of `sum(sin(out))`, under the names of the golden file."""
    layer = MixtureOfExperts(mixture, golden.INNER, precision="highest")
    x = jnp.asarray(golden.inputs(), jnp.float32)
    made = unboxed(jax.eval_shape(layer.init, jax.random.key(0), x))
    params = {
        path: jnp.asarray(golden.draw(path, leaf.shape), jnp.float32)
        for path, leaf in flatten_dict(made["params"], sep="/").items()
    }
    bias = jnp.asarray(golden.draw("moe/gate/bias", (mixture.num_experts,)), jnp.float32)
    state = {"moe": {"gate": {"bias": bias}}} if mixture.bias else {}

    def loss(params, x):
        out = layer.apply({**state, "params": unflatten_dict(params, sep="/")}, x)
        return jnp.sum(jnp.sin(out)), out

    (_, out), (by_leaf, by_x) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)
    return {**by_leaf, "out": out, "x": by_x}


def check(found, expected):
    assert set(found) == set(expected)
    assert np.abs(found["out"] - expected["out"]).max() < OUTPUTS
    for path, value in expected.items():
        assert np.abs(found[path] - value).max() <= GRADIENTS * np.abs(value).max(), path


def stored(case):
    with np.load(golden.GOLDEN) as file:
        return {name.removeprefix(f"{case}/"): file[name] for name in file if name.startswith(f"{case}/")}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_those_of_transformers(case):
    check(computed(CASES[case]), stored(case))


@pytest.mark.parametrize(("case", "field"), ALTERED, ids=lambda value: str(value))
def test_altering_a_field_moves_the_outputs_far_from_transformers(case, field):
    altered = computed(replace(CASES[case], **field))["out"]
    assert np.abs(altered - stored(case)["out"]).max() > 100 * OUTPUTS


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_transformers_live(case):
    pytest.importorskip("transformers")
    check(computed(CASES[case]), golden.reference(case))
