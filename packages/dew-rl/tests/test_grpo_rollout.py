"""Rollouts: what is drawn, judged and recorded, and that a row depends on itself alone."""

from __future__ import annotations

import dataclasses
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.failure import StatedFailure
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.rl import Checked, GRPOObjective, PolicyLoss, Responder, SampledRollout
from dew.objectives.rl.packing import at_targets, pack_rows
from dew.objectives.rl.rewards import scored
from dew.objectives.rl.rollout import response_keys
from dew.sampling import Sampling, generate
from dew.testing import in_memory
from dew.testing.objectives import assert_equal
from dew.training import Checkpoints, Trainer

VOCAB, BUDGET = 5, 4
MODEL = CausalTransformer(
    vocab_size=VOCAB, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, max_seq_len=8
)
VARIABLES = unboxed(MODEL.init(jax.random.key(2), jnp.zeros((1, 1), jnp.int32)))
STEP = Step(step=0, key=jax.random.key(7))
PROMPTS = np.array([[1, 2, 3], [4, 1, 2], [3, 3, 1]], np.int32)


class Letters:
    name, vocab_size, eos_id, pad_id = "letters", VOCAB, None, None

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + each) for each in ids)

    def fingerprint(self):
        return "letters"


def count_of_c(prompts, texts):
    return [float(text.count("c")) for text in texts]


def rollout(*, n=6, reward=count_of_c, **sampling):
    answers = Responder(
        model=MODEL, tokenizer=Letters(), reward=reward, sampling=Sampling(**sampling), max_new_tokens=BUDGET
    )
    return SampledRollout(responder=answers, n=n)


def rolled(prompts=PROMPTS, variables=VARIABLES, step=STEP, **options):
    return rollout(**options)(variables, {"prompt": prompts}, step)


def test_responses_are_those_of_generate_with_the_steps_key():
    batch = rolled()
    drawn = generate(MODEL, VARIABLES, PROMPTS, BUDGET, key=STEP.key, n=6)
    np.testing.assert_array_equal(batch["text"], drawn.tokens)
    assert jax.random.key_data(response_keys(STEP.key, 3, 1)).shape[0] == 3


def test_a_prompts_responses_do_not_depend_on_its_neighbours_or_their_number():
    alone, among = rolled(PROMPTS[:1], n=2), rolled(n=4)
    for name in ("text", "behavior_log_probs", "old_log_probs"):
        np.testing.assert_allclose(alone[name], among[name][:2], atol=1e-6)


def test_another_step_and_other_weights_draw_other_responses():
    first = rolled()["text"]
    assert (rolled(step=Step(step=0, key=jax.random.key(8)))["text"] != first).any()
    assert (rolled(variables=jax.tree.map(lambda leaf: 3 * leaf, VARIABLES))["text"] != first).any()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_both_likelihoods_are_recorded_at_their_targets(temperature):
    batch = rolled(temperature=temperature)
    logits = np.asarray(MODEL.apply(VARIABLES, batch["text"][:, :-1]), np.float64)
    for name, divisor in (("old_log_probs", 1.0), ("behavior_log_probs", temperature)):
        normal = jax.nn.log_softmax(logits / divisor)
        expected = np.take_along_axis(np.asarray(normal), batch["text"][:, 1:, None], -1)[..., 0]
        np.testing.assert_allclose(batch[name], expected * batch["loss_mask"], atol=1e-5)


def test_rewards_read_the_text_without_end_and_padding():
    seen = []
    rolled(
        reward=lambda prompts, texts: seen.extend(zip(prompts, texts, strict=True)) or [0.0] * 18, eos_id=0
    )
    assert {prompt for prompt, _ in seen} == {"bcd", "ebc", "ddb"}
    assert not any("a" in text for _, text in seen) and any(len(text) < BUDGET for _, text in seen)


def test_advantages_set_each_response_against_its_own_group():
    batch = rolled()
    rewards = batch["rewards"].reshape(3, 6).astype(np.float64)
    expected = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(batch["advantages"].reshape(3, 6), expected, atol=1e-5)


def test_end_as_the_first_token_is_a_response_of_one_trained_token():
    batch = rolled(eos_id=tuple(range(VOCAB)))
    assert batch["loss_mask"].sum(axis=1).tolist() == [1.0] * 18
    assert (batch["loss_mask"][:, 2] == 1).all() and (batch["old_log_probs"][:, 2] < 0).all()


def test_budget_without_an_end_trains_every_token():
    assert rolled()["loss_mask"].sum(axis=1).tolist() == [BUDGET] * 18


def test_end_counts_where_it_is_also_the_filling():
    batch = rolled(n=20, eos_id=2, pad_id=2)
    lengths = batch["loss_mask"].sum(axis=1).astype(int)
    ended = [row[3 + length - 1] == 2 for row, length in zip(batch["text"], lengths, strict=True)]
    assert 0 < sum(ended) < 60 and all(
        end or length == BUDGET for end, length in zip(ended, lengths, strict=True)
    )


def test_group_of_one_has_no_advantage_and_is_counted():
    batch = rolled(n=1)
    assert batch["advantages"].tolist() == [0.0] * 3 and batch["singleton"].tolist() == [1.0] * 3
    assert batch["loss_mask"].any(axis=1).all()


def test_abstaining_rewards_train_nothing_and_leave_their_group_whole():
    def reward(prompts, texts):
        return [None, 1.0, 0.0, float("nan"), None, None]

    batch = rolled(PROMPTS[:2], n=3, reward=reward)
    np.testing.assert_allclose(batch["advantages"], [0, 0.7071058, -0.7071058, 0, 0, 0], atol=2e-6)
    assert batch["loss_mask"].any(axis=1).tolist() == [False, True, True, False, False, False]
    assert batch["singleton"].tolist() == [0, 0, 0, 1, 1, 1] and np.isnan(batch["rewards"]).sum() == 4


def test_equal_rewards_are_reported_as_a_group_without_spread():
    batch = rolled(reward=lambda prompts, texts: [0.35] * len(texts))
    assert batch["no_spread"].tolist() == [1.0] * 18 and not batch["advantages"].any()


def test_padded_prompts_draw_and_pack_like_the_plain_ones():
    padded = np.array([[0, 1, 2, 3], [4, 1, 2, 0]], np.int32)
    mask = np.array([[0, 1, 1, 1], [1, 1, 1, 0]], np.int32)
    batch = rollout()(VARIABLES, {"prompt": padded, "prompt_mask": mask}, STEP)
    plain = rolled(PROMPTS[:2])
    for name in ("text", "loss_mask"):
        np.testing.assert_array_equal(batch[name][:, : plain[name].shape[1]], plain[name])
        assert not batch[name][:, plain[name].shape[1] :].any()


def test_prompts_of_unequal_length_are_followed_by_their_responses_at_once():
    rows = pack_rows(
        np.array([[7, 0, 0], [8, 9, 0]]),
        np.array([[1, 0, 0], [1, 1, 0]]),
        np.array([[1, 2], [3, 4]]),
        np.array([2, 1]),
    )
    assert rows.text.tolist() == [[7, 1, 2, 0, 0], [8, 9, 3, 0, 0]]
    assert rows.mask.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    placed = at_targets(np.array([[-1.0, -2.0], [-3.0, -4.0]]), rows, np.array([2, 1]))
    assert placed.tolist() == [[-1, -2, 0, 0], [0, -3, 0, 0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [([1.0], "1 values for 2 responses"), ([1.0, float("inf")], "response 1 .* is inf")],
)
def test_rewards_that_are_no_numbers_are_refused(values, message):
    with pytest.raises(StatedFailure, match=message):
        scored(lambda prompts, texts: values, ["p", "q"], ["a", "b"])


@pytest.mark.parametrize(
    ("field", "name"),
    [("behavior_log_probs", "behavior_log_probs"), ("raw_log_probs", "old_log_probs")],
)
def test_a_token_drawn_with_probability_zero_is_refused_by_its_place(field, name):
    def contradicting(*given, key):
        answers = rollout().responder(*given, key=key)
        drawn = answers.drawn
        changed = np.array(getattr(drawn, field))
        changed[5, 2] = -np.inf
        return answers._replace(drawn=dataclasses.replace(drawn, **{field: changed}))

    subject = SampledRollout(responder=contradicting, n=6)
    with pytest.raises(ValueError, match=rf"{name}\[5, 4\]=-inf"):
        subject(VARIABLES, {"prompt": PROMPTS}, STEP)


def test_checker_judges_each_response_by_its_prompt():
    class Prompts:
        def check(self, prompt, response):
            return float(prompt == response) if response else None

    assert Checked(Prompts())(["a", "b", "c"], ["a", "a", ""]) == [1.0, 0.0, None]


def test_a_batch_without_prompts_is_refused_by_name():
    with pytest.raises(ValueError, match="holds text and no 'prompt'"):
        rollout()(VARIABLES, {"text": PROMPTS}, STEP)


def trainer(**options):
    answers = rollout(n=8).responder
    subject = GRPOObjective(MODEL, 6, responder=answers, settings=PolicyLoss(kl_weight=0.01))
    return Trainer(
        subject,
        optax.adam(1e-2),
        key=jax.random.key(1),
        rollout=SampledRollout(responder=answers, n=8),
        **options,
    )


def test_run_stopped_inside_a_window_draws_and_learns_what_the_uninterrupted_one_does():
    data = in_memory({"prompt": PROMPTS}, batch=3)
    whole = trainer(accumulation=2).fit(data, steps=6)
    with tempfile.TemporaryDirectory() as directory:
        for steps in (3, 6):
            checkpoints = Checkpoints(directory, keep=1)
            state = trainer(accumulation=2, checkpoints=checkpoints).fit(
                data, steps=steps, checkpoint_every=3
            )
    assert_equal(whole.params, state.params)
    assert_equal(whole.ema, state.ema)


def test_policy_learns_what_is_rewarded():
    state = trainer().fit(in_memory({"prompt": PROMPTS}, batch=3), steps=60)
    before, after = (rolled(n=32, variables=each)["rewards"].mean() for each in (VARIABLES, state.params))
    assert before < 1.6 and after > 3.6
