"""Muon against Newton-Schulz in NumPy, and which parameters it moves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.training.optim import build_optimizer

A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalized(gradient):
    """Five quintic iterations in float64, from the unit Frobenius norm."""
    x = np.asarray(gradient, np.float64)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        s = x @ x.T
        x = A * x + (B * s + C * s @ s) @ x
    return x


def first_update(params, gradients, **opts):
    config = OptimConfig(optimizer="muon", learning_rate=0.1, optimizer_opts=opts)
    optimizer = build_optimizer(config, total_updates=4)
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
