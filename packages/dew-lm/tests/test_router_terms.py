"""Balance losses, the router's z-loss and the moving biases, by hand; and when a bias moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.moe.router import Router, RoutingLoad
from dew.nn.moe.routes import RouterRows
from dew.nn.sharding import unboxed
from dew.objectives.base import Mean, Step
from dew.objectives.lm import LMObjective
from dew.objectives.lm.batch import SEGMENTS_KEY, TEXT_KEY
from dew.objectives.lm.routing import RouterTerms

FOUR = Mixture(num_experts=4, top_k=2)


def load(counts, scores, log_partition=0.0):
    counts, scores = np.atleast_2d(counts), np.atleast_2d(scores)
    return RoutingLoad(
        jnp.asarray(counts, jnp.int32),
        jnp.asarray(scores, jnp.float32),
        jnp.full(len(counts), log_partition),
        jnp.asarray(counts.sum(1), jnp.int32),
    )


def reduced(terms, loads, total=0.0):
    tokens = Mean(jnp.asarray(total), jnp.asarray(1.0))
    return float(terms.reduced(terms.statistics(tokens, {("gate",): loads}, 1), 1)[0])


@pytest.mark.parametrize(("seq_aux", "expected"), [(True, 1.25), (False, 1.0)])
def test_balance_is_formed_within_rows_or_over_the_step(seq_aux, expected):
    # Two rows of four positions, one choice each: by row 2 (.75 .75 + .25 .25) = 1.25, together uniform.
    terms = RouterTerms(aux_loss_alpha=1.0, seq_aux=seq_aux)
    assert reduced(terms, load([[3, 1], [1, 3]], [[3.0, 1.0], [1.0, 3.0]])) == pytest.approx(expected)


@pytest.mark.parametrize(("seq_aux", "expected"), [(True, 1.25), (False, 1.25)])
def test_a_row_of_padding_alone_has_no_share_in_the_balance(seq_aux, expected):
    terms = RouterTerms(aux_loss_alpha=1.0, seq_aux=seq_aux)
    assert reduced(terms, load([[3, 1], [0, 0]], [[3.0, 1.0], [0.0, 0.0]])) == pytest.approx(expected)


def test_router_z_loss_is_a_mean_over_positions():
    assert reduced(RouterTerms(router_z_loss=0.5), load([3, 1], [2.0, 2.0], 8.0), 3.0) == pytest.approx(
        3.0 + 0.5 * 8 / 4
    )


def test_biases_move_towards_the_mean_load_by_the_rate():
    terms = RouterTerms(balance_rate=0.1)
    moved = terms.moved({"moe": {"bias": jnp.zeros(3)}}, {"bias": jnp.asarray([5, 3, 1])})
    np.testing.assert_allclose(moved["moe"]["bias"], [-0.1, 0.0, 0.1], atol=1e-7)


def test_a_load_too_large_for_a_product_in_int32_is_compared_exactly():
    terms = RouterTerms(balance_rate=1.0)
    counts = jnp.asarray([700_000_001, 700_000_000, 700_000_000])
    moved = terms.moved({"moe": {"bias": jnp.zeros(3)}}, {"bias": counts})
    np.testing.assert_array_equal(moved["moe"]["bias"], [-1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_router_reports_what_it_did_with_the_counted_tokens(kind):
    router = Router(Mixture(num_experts=4, top_k=2, scores=kind), precision="highest")
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    variables = unboxed(router.init(jax.random.key(1), x))
    counted = np.array([[True, True, False, True, False], [False] * 5])
    _, sown = router.apply(variables, x, RouterRows(jnp.asarray(counted)), mutable=["routing"])
    logits = np.asarray(x, np.float64) @ np.asarray(variables["params"]["kernel"], np.float64)
    scores = np.exp(logits) if kind == "softmax" else 1 / (1 + np.exp(-logits))
    shares = scores / scores.sum(-1, keepdims=True) * counted[..., None]
    chosen = np.argsort(-logits, axis=-1)[..., :2]
    counts = [[np.sum((chosen[row] == e) & counted[row][:, None]) for e in range(4)] for row in range(2)]
    squares = np.log(np.exp(logits).sum(-1)) ** 2 * counted
    found = sown["routing"]["load"]
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.positions, [3, 0])
    np.testing.assert_allclose(found.scores, shares.sum(1), atol=1e-5)
    np.testing.assert_allclose(found.log_partition, squares.sum(1), atol=1e-5)


def decoder(**fields):
    sizes = {"vocab_size": 32, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "max_seq_len": 12}
    return CausalTransformer(**{**sizes, "precision": "highest", **fields})


TERMS = {"aux_loss_alpha": 0.5, "router_z_loss": 0.3, "balance_rate": 0.1, "ema_decay": None}
BIASED = Mixture(num_experts=4, top_k=2, bias=True)


def value_and_gradient(objective, variables, tokens, segments):
    batch = {TEXT_KEY: jnp.asarray(tokens)} | (
        {} if segments is None else {SEGMENTS_KEY: jnp.asarray(segments)}
    )

    def loss(params):
        stats, aux = objective.loss(
            {**variables, "params": params}, batch, Step(step=0, key=jax.random.key(0))
        )
        return objective.reduce_loss(stats)[0], aux.effects

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])


def padded(marked, rows, slots):
    """Two rows of seven real ids in a batch of that shape, with their padding marked one way or the other."""
    real = np.random.default_rng(3).integers(1, 32, (2, 7)).astype(np.int32)
    room = ((0, rows - 2), (0, slots - 7))
    segments = np.pad(np.ones_like(real), room) if marked == "segments" else None
    return np.pad(real, room), segments


@pytest.mark.parametrize(("marked", "seq_aux"), [("segments", True), ("pad_id", False)])
def test_more_padding_changes_neither_loss_nor_gradient_nor_loads(marked, seq_aux):
    options = {**TERMS, "seq_aux": seq_aux, "pad_id": 0 if marked == "pad_id" else None}
    found = {}
    for rows, slots in ((2, 8), (3, 11)):
        objective = LMObjective(decoder(mixture=BIASED), slots - 1, **options)
        variables = unboxed(objective.init(jax.random.key(1)))
        found[rows] = value_and_gradient(objective, variables, *padded(marked, rows, slots))
    (value, loads), gradient = found[2]
    (other, others), same = found[3]
    assert sum(int(leaf.sum()) for leaf in jax.tree.leaves(loads)) == 2 * 7 * 2
    jax.tree.map(np.testing.assert_array_equal, loads, others)
    assert float(value) == pytest.approx(float(other), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), gradient, same)


@pytest.mark.parametrize("weight", [0.3, None])
def test_more_padding_changes_nothing_where_depths_have_experts_too(weight):
    """Depth 1 exists at 7 - 1 tokens of each row; without a term of theirs depths have no load."""
    options = {**TERMS, "pad_id": 0, **({} if weight is None else {"mtp_weight": weight})}
    found = []
    for rows, slots in ((2, 8), (3, 11)):
        model = decoder(mixture=BIASED, num_nextn_predict_layers=1)
        objective = LMObjective(model, slots - 1, **options)
        variables = jax.tree.map(lambda leaf: 3 * leaf, unboxed(objective.init(jax.random.key(1))))
        found.append(value_and_gradient(objective, variables, *padded("pad_id", rows, slots)))
    ((value, loads), gradient), ((other, others), same) = found
    sent = sum(int(leaf.sum()) for leaf in jax.tree.leaves(loads))
    assert sent == 2 * 2 * (7 if weight is None else 7 + 6)
    jax.tree.map(np.testing.assert_array_equal, loads, others)
    assert float(value) == pytest.approx(float(other), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=4e-6), gradient, same)


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (decoder(), {"aux_loss_alpha": 0.1}, r"aux_loss_alpha=0.1 needs .* mixture"),
        (decoder(), {"router_z_loss": 0.1}, r"router_z_loss=0.1 needs .* mixture"),
        (decoder(mixture=FOUR), {"balance_rate": 0.1}, r"balance_rate=0.1 .* bias=True"),
        (decoder(mixture=FOUR), {"seq_aux": False}, r"seq_aux=False .* aux_loss_alpha is unset"),
        (decoder(mixture=FOUR), {"aux_loss_alpha": -1.0}, r"aux_loss_alpha=-1.0 must be 0 or more"),
    ],
)
def test_terms_without_their_routers_are_refused(model, options, named):
    with pytest.raises(ValueError, match=named):
        LMObjective(model, 8, **options)


def test_loads_of_a_model_without_routers_are_refused():
    objective = LMObjective(decoder(), 8)
    with pytest.raises(ValueError, match=r"routing=True needs .* mixture"):
        objective.token_scores({"params": {}}, jnp.zeros((1, 9), jnp.int32), routing=True)
