"""When a router's bias moves: once a committed window, by the loads of its accepted microbatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective
from dew.objectives.lm.routing import counted
from dew.training import Trainer

RATE = 0.25
BIASED = Mixture(num_experts=4, top_k=2, bias=True, intermediate_size=8)
POISON = "poison"


class Poisoned(LMObjective):
    """Its loss is not a number where the batch says so."""

    def loss(self, params, batch, step):
        stats, aux = super().loss(params, batch, step)
        return jax.tree.map(lambda leaf: leaf * batch[POISON].astype(leaf.dtype), stats), aux


def objective(**fields):
    sizes = {"vocab_size": 32, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "max_seq_len": 8}
    model = CausalTransformer(**sizes, precision="highest", mixture=BIASED, **fields)
    return Poisoned(model, 6, ema_decay=None, balance_rate=RATE)


def batches(count):
    ids = np.random.default_rng(1).integers(0, 32, (count, 2, 7)).astype(np.int32)
    return [{"text": jnp.asarray(rows), POISON: jnp.asarray(1.0)} for rows in ids]


def states(of, given, accumulation):
    trainer = Trainer(of, optax.sgd(0.1), key=jax.random.key(0), accumulation=accumulation)
    state, _, _ = trainer.place()
    step = trainer.compile(state, given[0])
    found = [state]
    for batch in given:
        found.append(step(found[-1], batch).state)
    return found


def bias(state):
    return np.asarray(jax.tree.leaves(state.params["moe"])[0])


def loads(of, state, given):
    """Tokens of each expert over the batches, from the routers' own reports."""
    count = jax.jit(lambda ids: counted(of.token_scores(state.params, ids, routing=True).routing))
    return sum(np.asarray(jax.tree.leaves(count(batch["text"]))[0]) for batch in given)


def test_a_window_of_four_moves_the_bias_once_by_its_summed_load():
    of, given = objective(), batches(4)
    found = states(of, given, 4)
    for state in found[:4]:
        np.testing.assert_array_equal(bias(state), 0)
    load = loads(of, found[0], given)
    assert load.sum() == 4 * 2 * 6 * 2
    np.testing.assert_allclose(bias(found[4]), RATE * np.sign(load.mean() - load), atol=1e-7)


def test_a_rejected_microbatch_moves_no_bias_and_has_no_share_in_the_load():
    given = batches(3)
    given[1] = {**given[1], POISON: jnp.asarray(jnp.nan)}
    of = objective()
    with_it, without = states(of, given, 2), states(of, given[::2], 2)
    np.testing.assert_array_equal(bias(with_it[2]), 0)
    jax.tree.map(np.testing.assert_array_equal, with_it[-1].params, without[-1].params)
    assert np.abs(bias(with_it[-1])).max() > 0


def test_scoring_a_batch_opens_no_router_and_moves_nothing():
    of, given = objective(), batches(2)
    state = states(of, given[:1], 1)[-1]
    before = bias(state)
    step = Step(step=0, key=jax.random.key(1))
    losses = jax.jit(lambda variables: of.evaluate(variables, given[1], step).losses)(state.params)
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(bias(state), before)


@pytest.mark.parametrize("remat", [False, True])
def test_recomputed_layers_count_every_token_once(remat):
    of, (batch,) = objective(remat=remat), batches(1)
    variables = of.init(jax.random.key(0))

    def loss(params):
        stats, aux = of.loss({**variables, "params": params}, batch, Step(step=0, key=jax.random.key(0)))
        return stats.total, aux.effects

    effects = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])[1]
    assert sum(int(leaf.sum()) for leaf in jax.tree.leaves(effects)) == 2 * 6 * 2
