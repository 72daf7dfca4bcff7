"""The GRPO objective: what the ratio, the divergence and the denominators are, and what moves nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step, scalar_loss
from dew.objectives.rl import GRPOObjective, PolicyLoss, Responder, RewardedTexts
from dew.sampling import Sampling
from dew.testing import ObjectiveContract
from dew.training import Trainer

VOCAB, PROMPT, BUDGET = 11, 3, 4
TARGETS = PROMPT + BUDGET - 1
MODEL = CausalTransformer(
    vocab_size=VOCAB,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=24,
    max_seq_len=PROMPT + BUDGET,
    precision="highest",
)
VARIABLES = jax.tree.map(
    lambda leaf: 2.0 * leaf, unboxed(MODEL.init(jax.random.key(2), jnp.zeros((1, 1), jnp.int32)))
)
APPLY = jax.jit(MODEL.apply)
STEP = Step(step=0, key=jax.random.key(0))
LENGTHS = np.array([4, 1, 2, 3])
MASK = np.concatenate([np.zeros((4, PROMPT - 1)), np.arange(BUDGET) < LENGTHS[:, None]], axis=1).astype(
    np.float32
)
TEXT = np.random.default_rng(3).integers(1, VOCAB, (4, PROMPT + BUDGET)).astype(np.int32)
GAINS = np.array([1.0, -1.0, 2.0, -2.0], np.float32)


class Digits:
    """Writes ids as letters."""

    name, vocab_size, eos_id, pad_id = "digits", VOCAB, None, None

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + each) for each in ids)

    def fingerprint(self):
        return "digits"


def responder(**sampling):
    return Responder(
        model=MODEL,
        tokenizer=Digits(),
        reward=lambda prompts, texts: [float(text.startswith("b")) for text in texts],
        sampling=Sampling(**sampling),
        max_new_tokens=BUDGET,
    )


def objective(*, temperature=1.0, filters=(), **settings):
    settings = {"kl_weight": None, **settings}
    sampling = {"temperature": temperature, **dict(filters)}
    return GRPOObjective(MODEL, TARGETS, responder=responder(**sampling), settings=PolicyLoss(**settings))


def log_probs(text, temperature=1.0, variables=VARIABLES):
    """Next-token log likelihoods in float64, from the model's own logits."""
    logits = np.asarray(APPLY(variables, text[:, :-1]), np.float64) / temperature
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(normal, np.asarray(text)[:, 1:, None], -1)[..., 0].astype(np.float32)


LIKELIHOODS = log_probs(TEXT)


def packed(rows=4, **fields):
    """Responses of 4, 1, 2 and 3 tokens behind three prompt ids."""
    whole = {
        "text": TEXT,
        "loss_mask": MASK,
        "behavior_log_probs": LIKELIHOODS * MASK,
        "old_log_probs": LIKELIHOODS * MASK,
        "advantages": GAINS,
        "rewards": np.array([1, 0, 1, 0], np.float32),
        "no_spread": np.zeros(4, np.float32),
        "singleton": np.zeros(4, np.float32),
        **fields,
    }
    return {name: array[:rows] for name, array in whole.items() if array is not None}


def run(objective, batch, variables=VARIABLES, step=STEP):
    stats, aux = jax.jit(objective.loss)(variables, batch, step)
    return float(stats.total), float(stats.mass), {name: float(value) for name, value in aux.metrics.items()}


def gradient(objective, batch, step=STEP):
    return jax.jit(jax.grad(lambda variables: scalar_loss(objective, variables, batch, step)[0]))(VARIABLES)


class TestGRPOContract(ObjectiveContract):
    """With the divergence from likelihoods that were computed beforehand."""

    def objective(self):
        return objective(kl_weight=0.1)

    def batch(self, rows):
        reference = LIKELIHOODS + 0.3 * np.random.default_rng(5).normal(size=(4, TARGETS))
        return packed(rows, reference_log_probs=reference.astype(np.float32))


@pytest.mark.parametrize("reading", ["raw", "sampled"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_ratio_is_exactly_one_by_either_reading(reading, temperature):
    total, mass, metrics = run(objective(reading=reading, temperature=temperature), packed())
    assert (total, mass) == (-float((GAINS * LENGTHS).sum()), float(LENGTHS.sum()))
    assert metrics["clip_fraction"] == 0


@pytest.mark.parametrize(("reading", "divisor"), [("raw", 1.0), ("sampled", 0.6)])
def test_first_gradient_is_that_of_the_likelihood_times_the_advantage(reading, divisor):
    batch = packed()

    def plain(variables):
        logits = MODEL.apply(variables, batch["text"][:, :-1]) / divisor
        read = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["text"][:, 1:, None], -1)[..., 0]
        return -jnp.sum(batch["loss_mask"] * read * GAINS[:, None]) / batch["loss_mask"].sum()

    found = gradient(objective(reading=reading, temperature=0.6), batch)
    expected = jax.grad(plain)(VARIABLES)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_recorded_likelihoods_clip_a_ratio_that_has_moved():
    batch = packed(advantages=np.ones(4, np.float32))
    batch["old_log_probs"] = batch["old_log_probs"] - np.float32(np.log(1.5)) * batch["loss_mask"]
    total, mass, metrics = run(objective(on_policy=False, clip_high=0.28), batch)
    assert total / mass == pytest.approx(-1.28, abs=1e-6) and metrics["clip_fraction"] == 1
    assert all(
        not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient(objective(on_policy=False), batch))
    )


def test_without_old_likelihoods_the_behavior_takes_their_place_and_is_read_as_sampled():
    batch = packed(old_log_probs=None, advantages=np.ones(4, np.float32))
    batch["behavior_log_probs"] = log_probs(batch["text"], 0.6) * batch["loss_mask"]
    total, mass, _ = run(objective(on_policy=False, temperature=0.6), batch)
    assert total / mass == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_behavior_of_filtered_draws_is_no_old_likelihood(filters):
    subject = objective(on_policy=False, filters=filters)
    run(subject, packed())
    with pytest.raises(ValueError, match=r"a batch without 'old_log_probs' (under|at)"):
        subject.loss(VARIABLES, packed(old_log_probs=None), STEP)


def test_correction_weighs_tokens_by_old_over_behavior_up_to_its_bound():
    batch = packed(advantages=np.ones(4, np.float32))
    for ratio, weight in ((0.5, 0.5), (1.5, 1.5), (6.0, 2.0)):
        moved = np.float32(np.log(ratio)) * batch["loss_mask"]
        shifted = {**batch, "behavior_log_probs": batch["old_log_probs"] - moved}
        total, mass, metrics = run(objective(correction=2.0), shifted)
        assert total / mass == pytest.approx(-weight, rel=1e-5)
        assert metrics["correction"] == pytest.approx(weight, rel=1e-5)
        assert metrics["behavior_kl"] == pytest.approx(-np.log(ratio), abs=1e-5)


def test_one_likelihood_nobody_recorded_is_counted_and_moves_no_other_token():
    batch = packed(advantages=np.ones(4, np.float32))
    batch["behavior_log_probs"] = batch["behavior_log_probs"] - np.float32(np.log(1.5)) * MASK
    batch["behavior_log_probs"][0, PROMPT - 1] = np.nan
    total, mass, metrics = run(objective(correction=2.0), batch)
    assert (total, mass) == (pytest.approx(-(1 + 9 * 1.5), rel=1e-5), 10)
    assert (metrics["unknown_behavior"], metrics["effective_samples"] < 1) == (1, True)


def test_divergence_of_the_policy_from_itself_is_exactly_zero():
    trainer = Trainer(objective(kl_weight=0.1, temperature=0.6), optax.sgd(0.1), key=jax.random.key(0))
    state, _, _ = trainer.place()
    result = trainer.compile(state, packed())(state, packed())
    assert float(result.metrics["kl"]) == 0.0


def test_reference_stays_while_the_policy_moves():
    trainer = Trainer(objective(kl_weight=0.1), optax.sgd(0.5), key=jax.random.key(0))
    start, _, _ = trainer.place()
    step, state = trainer.compile(start, packed()), start
    for _ in range(3):
        result = step(state, packed())
        state = result.state
    assert float(result.metrics["kl"]) > 1e-3
    jax.tree.map(np.testing.assert_array_equal, state.averaged["params"], start.params["params"])


def test_divergence_is_weighted_into_the_loss():
    reference = packed()["old_log_probs"] - np.float32(0.5)
    batch = packed(advantages=np.zeros(4, np.float32), reference_log_probs=reference)
    total, mass, metrics = run(objective(kl_weight=0.1), batch)
    k3 = np.exp(-0.5) + 0.5 - 1
    assert metrics["kl"] == pytest.approx(k3, abs=1e-5) and total / mass == pytest.approx(0.1 * k3, abs=1e-6)


def test_divergence_without_a_reference_is_refused():
    with pytest.raises(ValueError, match=r"kl_weight=0.1 needs a reference"):
        objective(kl_weight=0.1).loss(VARIABLES, packed(), STEP)


def test_nothing_outside_the_mask_is_read():
    batch, other = packed(), packed()
    unread = np.asarray([[*[0] * PROMPT, *(np.arange(BUDGET) >= length)] for length in LENGTHS], bool)
    other["text"] = np.where(unread, 0, batch["text"])
    for name in ("behavior_log_probs", "old_log_probs"):
        other[name] = np.where(batch["loss_mask"] > 0, batch[name], 7).astype(np.float32)
    assert run(objective(on_policy=False), batch) == run(objective(on_policy=False), other)


def test_all_rows_masked_give_no_data_and_no_gradient():
    batch = packed(loss_mask=np.zeros((4, TARGETS), np.float32))
    subject = objective()
    stats, aux = jax.jit(subject.loss)(VARIABLES, batch, STEP)
    value, active = subject.reduce_loss(stats)
    assert (float(value), bool(active)) == (0.0, False)
    assert all(np.isfinite(value) for value in aux.metrics.values())
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient(subject, batch)))


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_a_row_without_a_trained_token_changes_nothing(mode):
    batch, rewards = packed(), np.array([1, 0, np.nan, 0], np.float32)
    batch["loss_mask"] = batch["loss_mask"] * np.array([[1], [1], [0], [1]], np.float32)
    kept = {name: array[[0, 1, 3]] for name, array in batch.items()}
    subject = objective(aggregation=mode)
    total, mass, metrics = run(subject, {**batch, "rewards": rewards})
    assert (total, mass) == pytest.approx(run(subject, kept)[:2], rel=1e-6)
    assert metrics["abstained"] == 0.25 and metrics["reward"] == pytest.approx(1 / 3)


def test_budget_norms_by_the_response_budget_and_not_by_the_width():
    total, mass, _ = run(objective(aggregation="seq_mean_token_sum_norm"), packed())
    assert (total, mass) == (-float((GAINS * LENGTHS).sum()), BUDGET * 4)


def test_four_microbatches_move_the_parameters_like_one():
    def moved(rows, accumulation):
        trainer = Trainer(objective(), optax.sgd(0.1), key=jax.random.key(0), accumulation=accumulation)
        state, _, _ = trainer.place()
        whole, step = packed(), trainer.compile(state, packed(rows))
        for at in range(0, 4, rows):
            state = step(state, {name: array[at : at + rows] for name, array in whole.items()}).state
        return state.params["params"]

    for one, two in zip(jax.tree.leaves(moved(4, 1)), jax.tree.leaves(moved(1, 4)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_packed_likelihoods_stand_where_the_rollout_records_them():
    batch = packed()
    scored = objective().packed_log_probs(VARIABLES, batch)
    np.testing.assert_allclose(scored, batch["old_log_probs"], atol=2e-5)


def test_likelihoods_under_a_narrow_model_are_float32_numbers():
    narrow = MODEL.clone(dtype=jnp.bfloat16)
    subject = GRPOObjective(narrow, TARGETS, responder=responder(), settings=PolicyLoss(kl_weight=None))
    scored = subject.packed_log_probs(VARIABLES, packed())
    assert scored.dtype == jnp.float32
    assert (scored != scored.astype(jnp.bfloat16).astype(jnp.float32)).any()
    np.testing.assert_allclose(scored, packed()["old_log_probs"], atol=0.1)


def test_reports_count_responses_and_their_tokens():
    batch = packed(no_spread=np.array([1, 1, 0, 0], np.float32))
    metrics = run(objective(), batch)[2]
    surprise = -batch["old_log_probs"].sum() / LENGTHS.sum()
    assert metrics["entropy"] == pytest.approx(surprise, rel=1e-5)
    assert (metrics["length"], metrics["reward"], metrics["no_spread"]) == (2.5, 0.5, 0.5)
    assert metrics["sampler_gap"] < 2e-5


def test_evaluation_judges_the_live_policys_best_answers():
    prompts = {"prompt": np.array([[1, 2, 3], [4, 5, 6]])}
    other = jax.tree.map(lambda leaf: -leaf, VARIABLES)
    found = objective(kl_weight=0.1).evaluate(VARIABLES, prompts, Step(step=0, key=STEP.key, ema=other))
    best = np.argmax(MODEL.apply(VARIABLES, prompts["prompt"])[:, -1], -1)
    assert isinstance(found, RewardedTexts) and found.prompts == ["bcd", "efg"]
    assert [text[0] for text in found.texts] == [chr(ord("a") + each) for each in best]
    assert found.rewards.tolist() == [float(text[0] == "b") for text in found.texts]


def test_preview_shows_ten_answers_spread_over_the_batch():
    texts = [str(number) for number in range(40)]
    scored = RewardedTexts(prompts=texts, texts=texts, rewards=np.zeros(40))
    shown = objective().preview(VARIABLES, {}, STEP, scored=scored)
    assert shown.texts == texts[::4]


def test_published_policy_is_the_live_one():
    trainer = Trainer(objective(kl_weight=0.1), optax.sgd(0.5), key=jax.random.key(0))
    state, _, _ = trainer.place()
    state = trainer.compile(state, packed())(state, packed()).state
    task = trainer.objective.pipeline(state)
    jax.tree.map(np.testing.assert_array_equal, task.variables["params"], state.params["params"])
    assert task.max_new_tokens == BUDGET


@pytest.mark.parametrize("sampling", [{"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_reading_as_sampled_is_refused_where_the_kept_ids_would_be_needed(sampling):
    with pytest.raises(ValueError, match=r"reading='sampled'|temperature=0"):
        GRPOObjective(MODEL, TARGETS, responder=responder(**sampling), settings=PolicyLoss(reading="sampled"))


def test_next_token_prediction_is_refused():
    with pytest.raises(TypeError, match="no predict"):
        objective().predict(VARIABLES, packed(), STEP, train=False)
