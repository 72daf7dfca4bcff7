"""The decoder against transformers: logits and gradients of shared weights, from golden files and live."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.sharding import unboxed

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_llama_golden", ROOT / "tools/make_llama_golden.py")
assert SPEC is not None and SPEC.loader is not None
golden = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden)

BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 96,
    "max_seq_len": 128,
    "norm_eps": 1e-2,
    "precision": "highest",
}
SIX = Mixture(num_experts=6, top_k=2)
SOME = Mixture(
    num_experts=6, top_k=2, intermediate_size=48, normalize=False, layers=(True, False, True, True)
)
CASES = {
    "llama": {},
    "llama_tied": {"tie_embeddings": True},
    "llama_geglu": {"activation": "geglu"},
    "qwen3": {"qk_norm": True, "head_dim": 24},
    "mistral": {"sliding_window": 5, "head_dim": 24},
    "mixtral": {"sliding_window": 5, "rope_theta": 1e6, "mixture": SIX},
    "qwen3_moe": {"qk_norm": True, "head_dim": 24, "mixture": SOME},
}
# Ten times the largest difference between float32 and float64 inside transformers at these settings.
LOGITS = 5e-4
GRADIENTS = 1.8e-4
ALTERED = [
    ("llama", {"rope_theta": 20000.0}),
    ("llama", {"norm_eps": 2e-2}),
    ("llama", {"activation": "geglu"}),
    ("llama", {"causal": False}),
    ("llama", {"attn_logit_softcap": 5.0}),
    ("llama", {"final_logit_softcap": 5.0}),
    ("mistral", {"sliding_window": 4}),
    ("mistral", {"sliding_window": 6}),
    ("mistral", {"sliding_layers": (True, False)}),
    ("mistral", {"sliding_window": None}),
    ("mixtral", {"mixture": replace(SIX, top_k=3)}),
    ("mixtral", {"mixture": replace(SIX, normalize=False)}),
    ("mixtral", {"activation": "geglu"}),
    ("qwen3_moe", {"mixture": replace(SOME, top_k=1)}),
    ("qwen3_moe", {"mixture": replace(SOME, normalize=True)}),
]


def variables_of(model: CausalTransformer) -> dict:
    template = unboxed(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    leaves = flatten_dict(template["params"], sep="/")
    drawn = {path: jnp.asarray(golden.draw(path, leaf.shape), jnp.float32) for path, leaf in leaves.items()}
    return {"params": unflatten_dict(drawn, sep="/")}


def logits_of(case: str, **fields: object) -> np.ndarray:
    model = CausalTransformer(**{**BASE, **CASES[case], **fields})
    ids = jnp.asarray(golden.token_ids())
    return np.asarray(jax.jit(model.apply)(variables_of(model), ids))


def gradients_of(case: str) -> dict[str, np.ndarray]:
    model = CausalTransformer(**{**BASE, **CASES[case]})
    ids = jnp.asarray(golden.token_ids())

    def loss(variables):
        logits = model.apply(variables, ids[:, :-1])
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    return flatten_dict(jax.jit(jax.grad(loss))(variables_of(model))["params"], sep="/")


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case):
    expected = np.load(golden.GOLDEN / f"{case}.npz")["logits"]
    assert np.abs(logits_of(case) - expected).max() < LOGITS


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_those_of_transformers(case):
    expected = np.load(golden.GOLDEN / f"{case}.npz")
    gradients = gradients_of(case)
    assert {f"grad/{path}" for path in gradients} == {name for name in expected if name.startswith("grad/")}
    for path, gradient in gradients.items():
        kept = expected[f"grad/{path}"]
        difference = np.abs(np.asarray(gradient).ravel()[:: golden.STRIDE] - kept).max()
        assert difference <= GRADIENTS * np.abs(gradient).max(), path
        assert np.linalg.norm(gradient) == pytest.approx(expected[f"norm/{path}"], rel=GRADIENTS), path


@pytest.mark.parametrize(("case", "field"), ALTERED, ids=lambda value: str(value))
def test_altering_a_field_moves_the_logits_far_beyond_the_tolerance(case, field):
    expected = np.load(golden.GOLDEN / f"{case}.npz")["logits"]
    assert np.abs(logits_of(case, **field) - expected).max() > 100 * LOGITS


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES)
def test_logits_and_whole_gradients_equal_transformers_live(case):
    pytest.importorskip("transformers")
    values = golden.reference(case)
    assert np.abs(logits_of(case) - values["logits"]).max() < LOGITS
    for path, gradient in gradients_of(case).items():
        expected = values[f"grad/{path}"]
        assert np.abs(gradient - expected).max() <= GRADIENTS * np.abs(expected).max(), path
