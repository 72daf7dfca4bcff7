"""Transforms at their edges: hand-computed rows, padding, budgets, configuration as data, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.sampling import Sampling, StepState, decoding, generate

TIED = [2, 1, 1, 1, -1, 0.5]
NEVER = -np.inf


def state_of(history, prompt, *, left=0, right=0, budget=None):
    """One row whose first `prompt` tokens are the prompt, with padding of id 1 beside it."""
    drawn = len(history) - prompt
    tokens = [1] * left + history[:prompt] + [1] * right + history[prompt:] + [1, 1]
    valid = [False] * left + [True] * prompt + [False] * right + [True] * drawn + [False] * 2
    return StepState(
        tokens=jnp.asarray([tokens], jnp.int32),
        valid=jnp.asarray([valid]),
        step=jnp.asarray([drawn], jnp.int32),
        active=jnp.ones(1, bool),
        keys=jax.random.split(jax.random.key(0), 1),
        prompt_width=left + prompt + right,
        budget=None if budget is None else jnp.asarray([budget], jnp.int32),
    )


def row(transform, history, prompt, scores=TIED, **padding):
    return np.asarray(transform(state_of(history, prompt, **padding), jnp.asarray([scores], jnp.float32))[0])


def kept(transform, scores):
    return set(np.flatnonzero(np.isfinite(row(transform, [0], 1, scores))).tolist())


def logs(*chances):
    return np.log(np.asarray(chances)).tolist()


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (decoding.Typical(0.5), {1, 2}),
        (decoding.EpsilonCutoff(0.9), {0}),
        (decoding.EtaCutoff(0.3), {0, 1, 2}),
        (decoding.TopH(0.4), {0}),
        (decoding.TopH(0.1), {0}),
        (decoding.TopH(), {0, 1, 2, 3}),
        (decoding.TopH(1.0, candidates=2), {0, 1}),
    ],
)
def test_a_cut_by_entropy_or_probability_keeps_this_set(transform, expected):
    assert kept(transform, logs(0.4, 0.3, 0.2, 0.1)) == expected


def test_a_prompt_penalty_above_one_favours_the_prompts_tokens():
    scores = row(decoding.PromptRepetitionPenalty(2.0), [0, 4, 5, 5], 2)
    np.testing.assert_allclose(scores, [4, 1, 1, 1, -0.5, 0.5])


@pytest.mark.parametrize(
    ("transform", "history", "prompt", "expected"),
    [
        (decoding.NoRepeatNGram(2), [0, 1, 1, 2, 1], 2, [2, NEVER, NEVER, 1, -1, 0.5]),
        (decoding.NoRepeatNGram(1), [0, 4], 1, [NEVER, 1, 1, 1, NEVER, 0.5]),
        (decoding.NoRepeatNGram(3), [0, 1], 1, TIED),
        (decoding.PromptNoRepeatNGram(2), [0, 1, 1, 2, 1], 3, [2, NEVER, 1, 1, -1, 0.5]),
        (decoding.sequence_bias([((1, 2), -5.0), ((3,), 1.0)]), [0, 1], 1, [2, 1, -4, 2, -1, 0.5]),
        (decoding.sequence_bias([((1, 2), -5.0)]), [1], 1, TIED),
        (decoding.bad_words([[0], [1, 3]], eos_id=0), [2, 1], 1, [2, 1, 1, NEVER, -1, 0.5]),
        (decoding.bad_words([[0]], eos_id=(0, 4)), [2, 1], 1, TIED),
        (decoding.SuppressTokens((0, 5)), [0], 1, [NEVER, 1, 1, 1, -1, NEVER]),
        (decoding.BeginSuppressTokens(0), [3, 3], 2, [NEVER, 1, 1, 1, -1, 0.5]),
        (decoding.BeginSuppressTokens(0), [3, 3], 1, TIED),
        (decoding.BeginSuppressTokens(0, 1), [3, 3], 1, [NEVER, 1, 1, 1, -1, 0.5]),
        (decoding.ForcedBOS(3), [0], 1, [NEVER, NEVER, NEVER, 0, NEVER, NEVER]),
        (decoding.ForcedBOS(3), [0, 0], 2, TIED),
        (decoding.ForcedEOS((1, 4), 5), [0, 0, 0, 0], 1, [NEVER, 0, NEVER, NEVER, 0, NEVER]),
        (decoding.ForcedEOS(1, 5), [0, 0, 0], 1, TIED),
        (decoding.MinLength(3, 4), [0, 0], 1, [2, 1, 1, 1, NEVER, 0.5]),
        (decoding.MinLength(3, 4), [0, 0, 0], 1, TIED),
        (decoding.MinNewTokens(2, (0, 4)), [0, 0, 0, 0], 3, [NEVER, 1, 1, 1, NEVER, 0.5]),
        (decoding.MinNewTokens(2, 4), [0, 0, 0], 1, TIED),
        (decoding.ExponentialDecayLengthPenalty(2, 2.0, 4), [0] * 6, 1, [2, 1, 1, 1, 6, 0.5]),
        (decoding.ExponentialDecayLengthPenalty(2, 2.0, 4), [0] * 3, 1, TIED),
        (decoding.FrequencyPenalty(0.5), [0, 0, 2, 2, 3], 2, [2, 1, 0, 0.5, -1, 0.5]),
        (decoding.PresencePenalty(0.5), [0, 0, 2, 2, 3], 2, [2, 1, 0.5, 0.5, -1, 0.5]),
    ],
)
@pytest.mark.parametrize("padding", [{}, {"left": 3}, {"right": 2}])
def test_a_transform_of_a_row_gives_this_whatever_its_padding(transform, history, prompt, expected, padding):
    """The padding's id is 1, so that reading it would show."""
    np.testing.assert_allclose(row(transform, history, prompt, **padding), expected)


def test_repeated_tokens_are_penalized_once_and_padding_never():
    for padding in ({}, {"left": 3}, {"right": 2}):
        scores = row(decoding.RepetitionPenalty(2.0), [0, 0, 4], 1, **padding)
        np.testing.assert_allclose(scores, [1, 1, 1, 1, -2, 0.5])


def test_a_forced_end_without_a_length_is_that_of_the_budget_not_of_the_slots():
    ended = [row(decoding.ForcedEOS(1), [0] * 3, 1, budget=budget)[0] for budget in (3, 4)]
    assert ended == [NEVER, 2.0]
    assert row(decoding.ForcedEOS(1), [0], 1)[0] == 2.0


def test_an_end_that_is_ruled_out_stays_out_of_a_growing_score():
    scores = [2, 1, 1, 1, NEVER, 0.5]
    np.testing.assert_array_equal(
        row(decoding.ExponentialDecayLengthPenalty(0, 2.0, 4), [0] * 3, 1, scores), scores
    )


def test_invalid_scores_are_repaired_and_scores_become_log_probabilities():
    bounds = np.finfo(np.float32)
    repaired = row(decoding.RemoveInvalidValues(), [0], 1, [np.nan, np.inf, NEVER, 1, 2, 3])
    expected = np.asarray([0, bounds.max, bounds.min, 1, 2, 3], np.float32)
    np.testing.assert_array_equal(repaired, expected)
    thirds = logs(0.5, 0.25, 0.25)
    np.testing.assert_allclose(row(decoding.Renormalize(), [0], 1, np.add(thirds, 3)), thirds, rtol=1e-6)


def test_the_regions_of_a_state_are_its_real_tokens():
    state = state_of([3, 4, 5, 2, 2], 3, left=2, right=1)
    for (tokens, count), expected in (
        (state.history(), [3, 4, 5, 2, 2]),
        (state.prompt_history(), [3, 4, 5]),
        (state.generated(), [2, 2]),
    ):
        assert tokens[0, : int(count[0])].tolist() == expected
    assert (int(state.total()[0]), int(state.limit()[0])) == (5, 4)


def test_configuration_is_data_and_another_value_compiles_nothing():
    apply = jax.jit(lambda transform, state, logits: transform(state, logits))
    state, logits = state_of([0, 1], 1), jnp.asarray([TIED])
    for make in (
        lambda value: decoding.RepetitionPenalty(1.0 + value),
        lambda value: decoding.SuppressTokens((value, 2)),
        lambda value: decoding.sequence_bias([((value,), float(value))]),
        lambda value: decoding.ExponentialDecayLengthPenalty(value, 1.0 + value, value),
        lambda value: decoding.MinLength(value, value),
    ):
        apply(make(1), state, logits)
        compiled = apply._cache_size()
        apply(make(3), state, logits)
        assert apply._cache_size() == compiled


class Uniform(nn.Module):
    """A decoder for which every token is as likely, whatever came before."""

    vocab_size: int = 6
    max_seq_len: int = 32
    causal: bool = True
    final_logit_softcap: float | None = None
    precision: None = None

    def init_cache(self, rows, capacity):
        return {}

    def head_weight(self, params):
        return jnp.zeros((1, self.vocab_size))

    def decode(self, tokens, positions, valid, cache):
        return jnp.zeros((*tokens.shape, 1)), cache


def drawn(prompts, budget, **parts):
    return generate(Uniform(), {}, np.asarray(prompts), budget, seed=3, **parts)


def test_a_request_ends_with_its_forced_token_at_its_own_budget():
    for budget in (3, 5):
        rows = drawn([[1, 2]] * 4, budget, sampling=Sampling(eos_id=5), logits=(decoding.ForcedEOS(5),))
        full = np.asarray(rows.lengths) == budget
        assert full.any()
        assert (np.asarray(rows.tokens)[full, -1] == 5).all()


def test_no_sequence_of_two_tokens_comes_twice():
    tokens = np.asarray(drawn([[1, 2]] * 8, 12, logits=(decoding.NoRepeatNGram(2),)).tokens)
    for each in tokens:
        pairs = list(itertools.pairwise(each.tolist()))
        assert len(set(pairs)) == len(pairs)


def test_functions_and_partials_are_transforms_beside_classes():
    def only(allowed, state, logits):
        return jnp.where(allowed, logits, -jnp.inf)

    allowed = jnp.arange(6) < 2
    chain = (decoding.Temperature(0.5), jax.tree_util.Partial(only, allowed), lambda state, logits: logits)
    assert set(np.asarray(drawn([[4]] * 8, 8, logits=chain).tokens)[:, 1:].ravel().tolist()) == {0, 1}


def test_an_empty_chain_transforms_nothing():
    rows = drawn([[1]], 4, sampling=Sampling(temperature=0.1, top_k=1), logits=())
    np.testing.assert_array_equal(rows.behavior_log_probs, rows.raw_log_probs)


def test_a_chain_that_rules_out_everything_raises_and_repair_mends_it():
    nothing = decoding.SuppressTokens(range(6))
    with pytest.raises(FloatingPointError, match="chain of transforms"):
        drawn([[1]], 2, logits=(nothing,))
    mended = drawn([[1]], 2, logits=(nothing, decoding.RemoveInvalidValues()))
    assert np.isfinite(mended.behavior_log_probs).all()


@pytest.mark.parametrize(
    "part",
    [
        decoding.SuppressTokens(6),
        decoding.BeginSuppressTokens([2, 9]),
        decoding.ForcedBOS(6),
        decoding.ForcedEOS(7),
        decoding.MinLength(2, 6),
        decoding.MinNewTokens(2, 6),
        decoding.ExponentialDecayLengthPenalty(2, 1.5, 6),
        decoding.sequence_bias([((6, 1), 1.0)]),
        decoding.bad_words([[1, 6]]),
    ],
)
def test_an_id_the_model_lacks_is_refused_before_anything_runs(part):
    with pytest.raises(ValueError, match="the model's ids are 0 to 5"):
        drawn([[1]], 2, logits=(part,))


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: decoding.Typical(1.0), ValueError, r"Typical\(1.0\)"),
        (lambda: decoding.EpsilonCutoff(0.0), ValueError, "EpsilonCutoff"),
        (lambda: decoding.EtaCutoff(1), ValueError, "EtaCutoff"),
        (lambda: decoding.TopH(0.0), ValueError, "fraction"),
        (lambda: decoding.TopH(candidates=0), ValueError, "candidates"),
        (lambda: decoding.RepetitionPenalty(0.0), ValueError, "above 0"),
        (lambda: decoding.PromptRepetitionPenalty(-1), ValueError, "above 0"),
        (lambda: decoding.NoRepeatNGram(0), ValueError, "at least 1"),
        (lambda: decoding.PromptNoRepeatNGram(1.5), ValueError, "integer"),
        (lambda: decoding.sequence_bias([]), ValueError, "no sequence"),
        (lambda: decoding.sequence_bias([((), 1.0)]), ValueError, "at least one"),
        (lambda: decoding.sequence_bias([((1,), float("nan"))]), ValueError, "nan"),
        (lambda: decoding.sequence_bias([((1,), 1.0), ((1,), 2.0)]), ValueError, "give it one"),
        (lambda: decoding.sequence_bias([(1, 2, 3)]), TypeError, "pair"),
        (lambda: decoding.bad_words([]), ValueError, "at least one"),
        (lambda: decoding.SuppressTokens(-1), ValueError, "0 or above"),
        (lambda: decoding.SuppressTokens((0.5,)), TypeError, "integers"),
        (lambda: decoding.SuppressTokens(True), TypeError, "integers"),
        (lambda: decoding.ForcedBOS((1, 2)), TypeError, "one token id"),
        (lambda: decoding.ForcedEOS(1, 0), ValueError, "max_length=0"),
        (lambda: decoding.MinLength(-1, 2), ValueError, "length=-1"),
        (lambda: decoding.MinNewTokens(1.5, 2), TypeError, "count=1.5"),
        (lambda: decoding.MaxNewTokens(0), ValueError, "count=0"),
        (lambda: decoding.MaxLength(0), ValueError, "length=0"),
        (lambda: decoding.EndOfSequence(-1), ValueError, "0 or above"),
        (lambda: decoding.EndOfSequence((0.5,)), TypeError, "integers"),
        (lambda: decoding.ExponentialDecayLengthPenalty(1, 0.0, 2), ValueError, "factor=0.0"),
    ],
)
def test_a_setting_that_breaks_its_rule_is_refused(make, error, named):
    with pytest.raises(error, match=named):
        make()
