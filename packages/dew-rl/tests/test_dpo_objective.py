"""The preference objective: its pairs, its reference, what it reports and what it refuses."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.artifacts import TextSamples
from dew.data.preferences import Pair, pair_records
from dew.data.text import ByteTokenizer
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step, scalar_loss, under
from dew.objectives.lm import Samples
from dew.objectives.rl import DPOObjective
from dew.objectives.rl.preference_scores import preference_metrics
from dew.testing import ObjectiveContract, in_memory
from dew.training import Trainer

LENGTH = 7
MODEL = CausalTransformer(
    vocab_size=256, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_seq_len=12,
    precision="highest",
)  # fmt: skip
PAIRS = [
    Pair("1+1=", "2", "3"),
    Pair("5+6=", "11", "1"),
    Pair("7=", "7", "70"),
    Pair("0+9=", "9", "12"),
]


def batch(pairs=PAIRS, end="\n"):
    records = pair_records(pairs, ByteTokenizer(), seq_len=LENGTH, end=end)
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def drawn(seed):
    variables = unboxed(MODEL.init(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32)))
    return jax.tree.map(lambda leaf: 3.0 * leaf, variables)


APPLY = jax.jit(MODEL.apply)
VARIABLES, REFERENCE = drawn(2), drawn(3)
STEP = Step(step=0, key=jax.random.key(0), ema=REFERENCE)


def objective(**fields):
    return DPOObjective(MODEL, LENGTH, **fields)


@functools.cache
def log_shares(which, prompt, response):
    """[response, 256] log probabilities in float64, from one row without filling."""
    ids = np.asarray(list((prompt + response).encode()))
    variables = {"policy": VARIABLES, "reference": REFERENCE}[which]
    logits = np.asarray(APPLY(variables, ids[None, :-1]), np.float64)[0, len(prompt) - 1 :]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def response_log_prob(which, prompt, response):
    """log p(response | prompt) and the number of its tokens."""
    shares = log_shares(which, prompt, response)
    return shares[np.arange(len(response)), list(response.encode())].sum(), len(response)


def expected(pairs=PAIRS, end="\n"):
    """Log ratios of sums and averages, [pairs] each, by scoring every response alone."""
    sums, averages = [], []
    for pair in pairs:
        for text in (pair.chosen, pair.rejected):
            now, length = response_log_prob("policy", pair.prompt, text + end)
            before, _ = response_log_prob("reference", pair.prompt, text + end)
            sums.append(now - before)
            averages.append((now - before) / length)
    return np.asarray(sums).reshape(-1, 2), np.asarray(averages).reshape(-1, 2)


class TestDPOContract(ObjectiveContract):
    def objective(self):
        return objective(beta=0.5)

    def batch(self, rows):
        return {name: values[:rows] for name, values in batch().items()}


@pytest.mark.parametrize("law", ["sigmoid", "hinge", "ipo"])
def test_loss_is_that_of_every_response_scored_alone(law):
    sums, averages = expected()
    margin = 0.5 * (sums[:, 0] - sums[:, 1])
    losses = {
        "sigmoid": np.log1p(np.exp(-margin)),
        "hinge": np.maximum(0, 1 - margin),
        "ipo": (averages[:, 0] - averages[:, 1] - 1) ** 2,
    }[law]
    stats, aux = jax.jit(objective(loss=law, beta=0.5).loss)(VARIABLES, batch(), STEP)
    assert float(stats.mass) == 4
    assert float(stats.total) == pytest.approx(losses.sum(), rel=1e-4)
    assert float(aux.metrics["accuracy"]) == (sums[:, 0] > sums[:, 1]).mean()
    assert float(aux.metrics["margin"]) == pytest.approx(margin.mean(), rel=1e-4)
    assert float(aux.metrics["chosen_reward"]) == pytest.approx(0.5 * sums[:, 0].mean(), rel=1e-4)
    assert float(aux.metrics["rejected_reward"]) == pytest.approx(0.5 * sums[:, 1].mean(), rel=1e-4)


def test_end_of_a_response_is_trained_and_filling_with_its_id_is_not():
    """The end has the id that fills the rows, so only an explicit mask tells them apart."""
    sums, _ = expected(end="\0")
    _, aux = jax.jit(objective(beta=1.0).loss)(VARIABLES, batch(end="\0"), STEP)
    assert float(aux.metrics["chosen_reward"]) == pytest.approx(sums[:, 0].mean(), rel=1e-4)
    mask = batch(end="\0")["chosen_mask"]
    assert mask.sum(1).tolist() == [2, 3, 2, 2] and mask[0].tolist() == [0, 0, 0, 1, 1, 0, 0]


def test_filling_is_never_read():
    filled = batch()
    for side in ("chosen", "rejected"):
        behind = np.arange(LENGTH + 1) > filled[f"{side}_mask"].cumsum(1).argmax(1)[:, None] + 1
        filled[side] = np.where(behind, 77, filled[side])
    loss = jax.jit(objective().loss)
    assert float(loss(VARIABLES, filled, STEP)[0].total) == float(loss(VARIABLES, batch(), STEP)[0].total)


def test_policy_that_is_its_reference_costs_log_2_a_pair_and_has_divergence_0():
    same = Step(step=0, key=STEP.key, ema=VARIABLES)
    assert float(scalar_loss(objective(), VARIABLES, batch(), same)[0]) == pytest.approx(np.log(2), abs=1e-7)
    scores = objective().evaluate(VARIABLES, batch(), same)
    assert scores.divergence.tolist() == [0.0] * 4 and scores.chosen_rewards.tolist() == [0.0] * 4


def test_pair_with_an_empty_response_does_not_count():
    changed = batch()
    changed["chosen_mask"] = changed["chosen_mask"] * np.asarray([[0], [1], [1], [1]])
    stats, _ = jax.jit(objective().loss)(VARIABLES, changed, STEP)
    rest = {name: values[1:] for name, values in batch().items()}
    others, _ = jax.jit(objective().loss)(VARIABLES, rest, STEP)
    assert (float(stats.mass), float(others.mass)) == (3, 3)
    assert float(stats.total) == pytest.approx(float(others.total), rel=1e-6)


def test_batch_without_a_counted_pair_has_no_gradient():
    empty = batch() | {"chosen_mask": np.zeros((4, LENGTH), np.int32)}
    gradient = jax.jit(jax.grad(lambda v: scalar_loss(objective(), v, empty, STEP)[0]))(VARIABLES)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_reference_is_the_start_of_the_run_bit_for_bit_and_the_policy_moves():
    subject = objective(pretrained=VARIABLES)
    trainer = Trainer(subject, optax.sgd(0.5), key=jax.random.key(1))
    state = trainer.fit(in_memory(batch(), batch=4), steps=3)
    jax.tree.map(np.testing.assert_array_equal, state.averaged["params"], VARIABLES["params"])
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.params["params"], VARIABLES["params"])
    assert any(jax.tree.leaves(moved))


def test_published_policy_is_the_trained_one():
    subject = objective(samples=Samples([[1, 2]], 3))
    state = Trainer(subject, optax.sgd(0.5), key=jax.random.key(1)).initial_state()
    state = state.replace(ema=jax.tree.map(jnp.zeros_like, state.ema))
    for ema in (True, False):
        jax.tree.map(np.testing.assert_array_equal, subject.pipeline(state, ema=ema).variables, state.params)


def test_partly_trained_policy_keeps_the_other_leaves():
    subject = objective(trainable=under("params", "lm_head"))
    variables = unboxed(subject.init(jax.random.key(2)))
    assert list(variables["params"]) == ["lm_head"]
    gradient = jax.grad(
        lambda v: scalar_loss(subject, v, batch(), Step(step=0, key=STEP.key, ema=variables))[0]
    )(variables)
    assert np.asarray(gradient["params"]["lm_head"]["kernel"]).any()


def test_evaluation_reports_likelihoods_and_the_exact_divergence():
    scores = objective(beta=0.5).evaluate(VARIABLES, batch(), STEP)
    rows = [(pair.prompt, text + "\n") for pair in PAIRS for text in (pair.chosen, pair.rejected)]
    likelihoods = np.asarray([response_log_prob("policy", *row)[0] for row in rows]).reshape(-1, 2)
    np.testing.assert_allclose(scores.chosen_log_probs, likelihoods[:, 0], rtol=1e-4)
    np.testing.assert_allclose(scores.rejected_log_probs, likelihoods[:, 1], rtol=1e-4)
    divergences = np.asarray([exact_divergence(*row) for row in rows]).reshape(-1, 2).sum(1)
    np.testing.assert_allclose(scores.divergence, divergences, rtol=1e-4)
    assert scores.tokens.tolist() == [4, 5, 5, 5]


def exact_divergence(prompt, response):
    now, before = (log_shares(which, prompt, response) for which in ("policy", "reference"))
    return float((np.exp(now) * (now - before)).sum())


def test_metrics_of_a_pass_read_what_evaluation_yields():
    scores = objective(beta=0.5).evaluate(VARIABLES, batch(), STEP)
    found = {metric.name: metric.finalize(metric(scores)) for metric in preference_metrics()}
    stats, aux = jax.jit(objective(beta=0.5).loss)(VARIABLES, batch(), STEP)
    assert found["preference_accuracy"] == float(aux.metrics["accuracy"])
    assert found["preference_loss"] == pytest.approx(float(stats.total) / 4, rel=1e-5)
    assert found["preference_margin"] == pytest.approx(float(aux.metrics["margin"]), rel=1e-4)
    assert found["kl"] == pytest.approx(float(scores.divergence.sum()) / 19, rel=1e-6)
    likelier = np.asarray(scores.chosen_log_probs) > np.asarray(scores.rejected_log_probs)
    assert found["likelihood_accuracy"] == likelier.mean()


def test_previews_continue_with_the_live_policy():
    shown = objective(
        samples=Samples([[49, 43]], 2, decode=lambda ids: bytes(ids).decode("latin-1"))
    ).preview(VARIABLES, batch(), STEP)
    assert isinstance(shown, TextSamples) and shown.prompts == ["1+"]


@pytest.mark.parametrize(
    ("fields", "message"), [({"loss": "kto"}, "loss='kto'"), ({"beta": -1.0}, r"beta=-1\.0")]
)
def test_laws_that_are_not_computed_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        objective(**fields)


def test_step_without_a_reference_rows_of_another_width_and_token_predictions_are_refused():
    with pytest.raises(ValueError, match=r"step\.ema=None"):
        objective().loss(VARIABLES, batch(), Step(step=0, key=STEP.key))
    narrow = batch() | {"rejected": batch()["rejected"][:, :-1]}
    with pytest.raises(ValueError, match=r"batch\['rejected'\] has rows of 7 ids; seq_len=7 needs 8"):
        objective().loss(VARIABLES, narrow, STEP)
    with pytest.raises(TypeError, match="no predict"):
        objective().predict(VARIABLES, batch(), STEP, train=False)


def test_rates_count_pairs():
    assert objective().unit == "pairs" and objective().count_units(batch()) == 4
