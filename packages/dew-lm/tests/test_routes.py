"""Replayed experts through a whole decoder and its objective."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.moe.routes import record_of
from dew.nn.sharding import unboxed
from dew.objectives.lm import LMObjective

SIZES = {"vocab_size": 32, "hidden_size": 8, "num_layers": 3, "num_heads": 2, "max_seq_len": 8}
SOME = Mixture(num_experts=4, top_k=2, intermediate_size=12, layers=(True, False, True))
IDS = np.random.default_rng(0).integers(0, 32, (2, 7)).astype(np.int32)


def objective(**fields):
    return LMObjective(
        CausalTransformer(**{**SIZES, "precision": "highest", "mixture": SOME, **fields}), 6, ema_decay=None
    )


@pytest.fixture(scope="module")
def variables():
    drawn = unboxed(objective().init(jax.random.key(0)))
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)


@pytest.fixture(scope="module")
def record(variables):
    """The experts of every id, as the model alone chooses them."""
    model = objective().model

    def recorded(variables):
        sown = model.apply(variables, IDS, method="hidden_states", mutable=["routes"])[1]
        return record_of(sown, model.bank.view.names)

    return jax.jit(recorded)(variables)


def scored(variables, routes=None, **fields):
    of = objective(**fields)

    def loss(variables):
        losses = of.token_scores(variables, IDS, routes=routes).losses
        return jnp.sum(jnp.sin(losses)), losses

    (_, losses), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    return losses, gradient


@jax.jit
def losses(variables, *routes):
    return objective().token_scores(variables, IDS, routes=routes).losses


def test_a_record_has_every_layer_and_zeros_where_there_are_no_experts(record):
    assert record.shape == (2, 7, 3, 2)
    assert (np.sort(record[:, :, (0, 2)])[..., 0] < np.sort(record[:, :, (0, 2)])[..., 1]).all()
    assert not np.asarray(record[:, :, 1]).any()


def test_replaying_its_own_record_changes_nothing(variables, record):
    jax.tree.map(np.testing.assert_array_equal, scored(variables, (record, None)), scored(variables))


def test_recomputing_layers_replays_the_same(variables, record):
    other = (record + 1) % 4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        scored(variables, (other, None), remat=True),
        scored(variables, (other, None)),
    )


def test_a_record_is_aligned_with_the_ids_and_the_layers(variables, record):
    plain = losses(variables, record, np.ones((2, 7), bool))
    other = (record + 1) % 4
    covered = np.zeros((2, 7), bool)
    covered[0, 3] = True
    moved = losses(variables, other, covered)
    np.testing.assert_array_equal(moved[1], plain[1])
    np.testing.assert_array_equal(moved[0, :3], plain[0, :3])
    assert abs(float(moved[0, 3] - plain[0, 3])) > 1e-4
    covered[:] = True
    first = losses(variables, record.at[:, :, 0].set(other[:, :, 0]), covered)
    last = losses(variables, record.at[:, :, 2].set(other[:, :, 2]), covered)
    assert np.abs(first - plain).max() > 1e-4 and np.abs(first - last).max() > 1e-4


def test_the_last_id_is_a_target_alone_and_its_record_is_not_read(variables, record):
    wrong = record.at[:, -1].set(-1)
    assert np.isfinite(losses(variables, wrong, np.ones((2, 7), bool))).all()


@pytest.mark.parametrize(
    ("routes", "named"),
    [
        ((np.zeros((2, 7, 2, 2), np.int32), None), r"\(2, 7, 2, 2\) .* num_layers=3 .* give \(2, 7, 3, 2\)"),
        ((np.zeros((2, 6, 3, 2), np.int32), None), r"give \(2, 7, 3, 2\)"),
        ((np.zeros((2, 7, 3, 2), np.float32), None), "dtype float32 must be integers"),
        ((np.zeros((2, 7, 3, 2), np.int32), np.ones((2, 6), bool)), r"bool\[2, 6\] and must be bool\[2, 7\]"),
        ((np.zeros((2, 7, 3, 2), np.int32), np.ones((2, 7))), r"float\w*\[2, 7\] and must be bool"),
    ],
)
def test_records_that_do_not_fit_are_refused(routes, named):
    with pytest.raises(ValueError, match=named):
        objective().token_scores({"params": {}}, IDS, routes=routes)


def test_routes_of_a_model_without_experts_are_refused():
    with pytest.raises(ValueError, match=r"routes needs .* mixture"):
        objective(mixture=None).token_scores({"params": {}}, IDS, routes=(np.zeros((2, 7, 3, 2)), None))
