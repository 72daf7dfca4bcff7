"""Muon against torch's (golden) and Newton-Schulz in NumPy, and which parameters it moves."""

import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.training.optim import build_optimizer
from dew.training.optim.matrices import Sides, axis_names, sides

GOLDEN = json.loads((Path(__file__).parent / "golden" / "optimizers.json").read_text())
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalized(gradient):
    """Five quintic iterations in float64, from the unit Frobenius norm."""
    x = np.asarray(gradient, np.float64)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        s = x @ x.T
        x = A * x + (B * s + C * s @ s) @ x
    return x


def first_update(params, gradients, axes=None, **opts):
    config = OptimConfig(optimizer="muon", learning_rate=0.1, optimizer_opts=opts)
    optimizer = build_optimizer(config, total_updates=4, axes=axes or {})
    updates, state = optimizer.update(gradients, optimizer.init(params), params)
    return updates, state


def drawn(shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3)])
def test_matrix_moves_by_its_orthogonalized_gradient(shape):
    params = {"dense": {"kernel": jnp.zeros(shape)}}
    updates, _ = first_update(params, {"dense": {"kernel": drawn(shape)}})
    expected = -0.1 * 0.2 * np.sqrt(max(shape)) * orthogonalized(drawn(shape))
    np.testing.assert_allclose(updates["dense"]["kernel"], expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(("shape", "factor"), [((2, 8), 2.0), ((8, 2), 1.0)])
def test_without_consistent_rms_only_widening_matrices_grow(shape, factor):
    params = {"dense": {"kernel": jnp.zeros(shape)}}
    updates, _ = first_update(params, {"dense": {"kernel": drawn(shape)}}, consistent_rms=None)
    expected = -0.1 * factor * orthogonalized(drawn(shape))
    np.testing.assert_allclose(updates["dense"]["kernel"], expected, rtol=2e-4, atol=2e-6)


def test_a_stack_of_matrices_moves_as_each_alone():
    stack = drawn((3, 4, 5))
    params = {"experts": {"kernel": jnp.zeros_like(stack)}}
    updates, _ = first_update(params, {"experts": {"kernel": stack}})
    alone = np.stack([-0.1 * 0.2 * np.sqrt(5) * orthogonalized(matrix) for matrix in stack])
    np.testing.assert_allclose(updates["experts"]["kernel"], alone, rtol=2e-4, atol=2e-6)


def test_vectors_embeddings_head_and_other_ranks_go_to_adam():
    shapes = {
        "norm": (4,),
        "embed_tokens": (5, 4),
        "lm_head": (4, 5),
        "conv": (2, 2, 3, 4),
        "heads": (4, 2, 3),
    }
    gradients = {name: {"w": drawn(shape)} for name, shape in shapes.items()}
    params = jax.tree.map(jnp.zeros_like, gradients)
    updates, _ = first_update(params, gradients)
    expected, _ = (adam := optax.adam(0.1)).update(gradients, adam.init(params), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updates, expected)


def test_momentum_is_kept_between_updates():
    config = OptimConfig(optimizer="muon", learning_rate=1.0, optimizer_opts={"nesterov": False, "beta": 0.5})
    optimizer = build_optimizer(config, total_updates=4)
    params = {"kernel": jnp.zeros((3, 3))}
    first, second = drawn((3, 3)), drawn((3, 3)).T
    _, state = optimizer.update({"kernel": first}, optimizer.init(params), params)
    updates, _ = optimizer.update({"kernel": second}, state, params)
    expected = -0.2 * np.sqrt(3) * orthogonalized(0.25 * first + 0.5 * second)
    np.testing.assert_allclose(updates["kernel"], expected, rtol=5e-4, atol=5e-6)


def test_weight_decay_acts_on_matrices_too():
    params = {"kernel": jnp.full((3, 3), 2.0)}
    config = OptimConfig(optimizer="muon", learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer(config, total_updates=4)
    updates, _ = optimizer.update({"kernel": jnp.zeros((3, 3))}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * 0.5 * params["kernel"], rtol=1e-6)


TORCH = {
    "muon_rms": {"weight_decay": 0.1, "optimizer_opts": {"beta": 0.9}},
    "muon_shape": {"optimizer_opts": {"consistent_rms": None}},
    "muon_plain": {"optimizer_opts": {"nesterov": False}},
}


@pytest.mark.parametrize("rule", TORCH)
def test_twenty_steps_equal_torch_without_its_bfloat16(rule):
    problem = GOLDEN["muon"]

    def kernels(side):  # torch's weights are [out, in]
        return {name: jnp.asarray(problem[side][name], jnp.float32).T for name in ("wide", "tall")}

    params, target = kernels("start"), kernels("target")
    optimizer = build_optimizer(
        OptimConfig(optimizer="muon", learning_rate=0.02, **TORCH[rule]), total_updates=20
    )
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step, scale in enumerate(GOLDEN["scales"]):
        gradient = jax.tree.map(lambda p, t, scale=scale: scale * (p - t), params, target)
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        for name, values in problem["rules"][rule].items():
            np.testing.assert_allclose(params[name].T, values[step], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("embed", "heads"), Sides((0,), (1,))),
        (("embed", "heads", "head_dim"), Sides((0,), (1, 2))),
        (("heads", "head_dim", "embed"), Sides((0, 1), (2,))),
        (("embed", "kv_heads", "head_dim"), Sides((0,), (1, 2))),
        (("expert", "embed", "mlp"), Sides((1,), (2,))),
        (("layers", "expert", "mlp", "embed"), Sides((2,), (3,))),
        (("layers", "embed", "heads", "head_dim"), Sides((1,), (2, 3))),
        (("embed", None), Sides((0,), (1,))),
        (("vocab", "embed"), None),
        (("position", "embed"), None),
        (("embed", "vocab"), None),
        (("heads", "head_dim"), None),
        (("layers", "norm"), None),
        ((None, None, "embed", "mlp"), None),
        (("embed",), None),
    ],
)
def test_axis_names_say_what_is_a_matrix(names, expected):
    assert sides(names) == expected


@pytest.mark.parametrize(
    ("names", "shape", "flat"),
    [
        (("embed", "heads", "head_dim"), (6, 2, 4), (6, 8)),
        (("heads", "head_dim", "embed"), (2, 4, 6), (8, 6)),
    ],
)
def test_heads_and_their_width_are_one_side(names, shape, flat):
    gradient = {"q": {"kernel": drawn(shape)}}
    updates, _ = first_update(
        jax.tree.map(jnp.zeros_like, gradient), gradient, axes={"params/q/kernel": names}
    )
    expected = -0.1 * 0.2 * np.sqrt(8) * orthogonalized(drawn(shape).reshape(flat))
    np.testing.assert_allclose(updates["q"]["kernel"].reshape(flat), expected, rtol=2e-4, atol=2e-6)


def test_a_named_stack_of_layers_and_experts_moves_as_each_matrix_alone():
    gradient = {"bank": drawn((2, 3, 4, 5))}
    axes = {"params/bank": ("layers", "expert", "embed", "mlp")}
    updates, _ = first_update(jax.tree.map(jnp.zeros_like, gradient), gradient, axes=axes)
    alone = [[orthogonalized(matrix) for matrix in layer] for layer in gradient["bank"]]
    expected = -0.1 * 0.2 * np.sqrt(5) * np.asarray(alone)
    np.testing.assert_allclose(updates["bank"], expected, rtol=2e-4, atol=2e-6)


def test_a_table_over_the_vocabulary_goes_to_adam_whatever_it_is_called():
    gradient = {"tokens": drawn((5, 4))}
    axes = {"params/tokens": ("vocab", "embed")}
    updates, _ = first_update(jax.tree.map(jnp.zeros_like, gradient), gradient, axes=axes)
    expected, _ = (adam := optax.adam(0.1)).update(gradient, adam.init(gradient))
    np.testing.assert_allclose(updates["tokens"], expected["tokens"], rtol=1e-6)


def test_axis_names_are_read_off_the_boxes_by_full_path():
    def start(key):
        boxed = nn.LogicallyPartitioned(jnp.zeros((2, 3)), ("embed", None))
        return {"params": {"a": {"kernel": boxed, "bias": jnp.zeros(3)}}, "state": {"b": boxed}}

    names = axis_names(jax.eval_shape(start, jax.random.key(0)))
    assert names == {"params/a/kernel": ("embed", None)}
