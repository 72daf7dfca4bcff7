"""`generate`: the law of its draws, the likelihoods it reports, and what a row may depend on."""

import itertools
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.inputs import ModelInputs
from dew.sampling import Sampling, generate
from dew.sampling.decoding import EndOfSequence, MaxLength, MaxNewTokens, Sample, Temperature, TopK
from dew.sampling.text import loop, operations
from dew.sampling.text.checks import row_keys

FIELDS = ("tokens", "lengths", "terminated", "behavior_log_probs", "raw_log_probs")


class Chain(nn.Module):
    """A Markov chain as a decoder: row i of its table is the logits after token i."""

    vocab_size: int
    max_seq_len: int = 64
    causal: bool = True
    final_logit_softcap: float | None = None
    precision: None = None

    def setup(self):
        self.table = self.param("table", nn.initializers.zeros, (self.vocab_size, self.vocab_size))

    def init_cache(self, rows, capacity):
        return {}

    def head_weight(self, params):
        return jnp.eye(self.vocab_size)

    def decode(self, tokens, positions, valid, cache):
        return self.table[tokens], cache


def markov(table):
    table = jnp.asarray(table, jnp.float32)
    return Chain(table.shape[0]), {"params": {"table": table}}


def certain(*order):
    """A chain that goes through `order` without choice."""
    table = np.full((max(order) + 1,) * 2, -100.0)
    for here, there in itertools.pairwise(order):
        table[here, there] = 100.0
    return markov(table)


@pytest.fixture(scope="module")
def decoder():
    """A small transformer with grouped heads, windows and a soft cap, its logits far from uniform."""
    model = CausalTransformer(
        vocab_size=61,
        hidden_size=48,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=80,
        max_seq_len=96,
        sliding_window=5,
        sliding_layers=(True, False, True),
        final_logit_softcap=20.0,
    )
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    return model, jax.tree.map(lambda leaf: 1.5 * leaf, variables)


def ragged(lengths, width, seed=0):
    """Left-padded random rows with these lengths; the padding holds ids that must not be read."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, 61, (len(lengths), width)).astype(np.int32)
    mask = np.arange(width) >= width - np.asarray(lengths)[:, None]
    return tokens, mask


def inputs(tokens, mask):
    return ModelInputs(tokens, {"attention_mask": mask})


def same(first, second, rows=slice(None)):
    for name in FIELDS:
        np.testing.assert_array_equal(
            np.asarray(getattr(first, name))[rows], np.asarray(getattr(second, name)), err_msg=name
        )


def test_cached_decoding_equals_the_full_forward(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 11, 7, 1], 11)
    drawn = generate(model, variables, inputs(tokens, mask), 20, seed=1, sampling=Sampling(temperature=0.7))
    for row, length in enumerate([3, 11, 7, 1]):
        real = np.asarray(drawn.tokens)[row, 11 - length :]
        logits = model.apply(variables, real[None])[0, length - 1 : -1]
        for scale, reported in ((1.0, drawn.raw_log_probs), (0.7, drawn.behavior_log_probs)):
            expected = np.take_along_axis(
                np.asarray(jax.nn.log_softmax(logits / scale)), real[length:, None], axis=1
            )[:, 0]
            np.testing.assert_allclose(reported[row], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_permuting_rows_with_their_keys_permutes_the_results_bit_for_bit(decoder, order):
    model, variables = decoder
    tokens, mask = ragged([3, 11, 7, 1, 9], 11)
    keys = jax.random.split(jax.random.key(5), 5)
    order = np.asarray(order)
    policy = Sampling(temperature=0.9, top_k=30, top_p=0.95, min_p=0.001, eos_id=7)
    straight = generate(model, variables, inputs(tokens, mask), 24, key=keys, sampling=policy)
    permuted = generate(
        model, variables, inputs(tokens[order], mask[order]), 24, key=keys[order], sampling=policy
    )
    same(straight, permuted, order)


def test_a_row_alone_draws_what_it_draws_among_others(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 11, 7, 1, 9], 11)
    keys = jax.random.split(jax.random.key(5), 5)
    together = generate(model, variables, inputs(tokens, mask), 24, key=keys)
    for row in range(5):
        alone = generate(model, variables, tokens[row : row + 1, mask[row]], 24, key=keys[row : row + 1])
        np.testing.assert_array_equal(alone.tokens[0, -24:], together.tokens[row, -24:])
        np.testing.assert_allclose(alone.raw_log_probs[0], together.raw_log_probs[row], atol=1e-5, rtol=0)


def test_padding_is_never_read(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 6], 6)
    wide = np.concatenate([np.full((2, 5), 60, np.int32), np.where(mask, tokens, 59)], axis=1)
    wide_mask = np.concatenate([np.zeros((2, 5), bool), mask], axis=1)
    narrow = generate(model, variables, inputs(tokens, mask), 8, seed=0)
    padded = generate(model, variables, inputs(wide, wide_mask), 8, seed=0)
    np.testing.assert_array_equal(narrow.tokens[:, 6:], padded.tokens[:, 11:])
    np.testing.assert_array_equal(narrow.raw_log_probs, padded.raw_log_probs)


def test_more_continuations_leave_the_first_as_it_was(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 6], 6)
    one = generate(model, variables, inputs(tokens, mask), 12, seed=3)
    three = generate(model, variables, inputs(tokens, mask), 12, seed=3, n=3)
    same(three, one, slice(0, None, 3))
    assert three.rows == 6
    assert len({tuple(row) for row in np.asarray(three.tokens)}) == 6


def test_keys_fold_the_row_and_then_the_continuation(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 6], 6)
    rows = [jax.random.fold_in(jax.random.key(3), row) for row in range(2)]
    drawn = generate(model, variables, inputs(tokens, mask), 12, key=jax.random.key(3), n=2)
    first = generate(model, variables, inputs(tokens, mask), 12, key=jnp.stack(rows))
    folded = jnp.stack([jax.random.fold_in(key, 1) for key in rows])
    second = generate(model, variables, inputs(tokens, mask), 12, key=folded)
    same(drawn, first, slice(0, None, 2))
    same(drawn, second, slice(1, None, 2))


def test_the_first_continuation_draws_with_the_rows_own_key():
    model, variables = markov(np.tile(SCORES, (7, 1)))
    key = jax.random.key(8)
    drawn = generate(model, variables, [[0]], 6, key=key[None])
    law = np.append(np.exp(SCORES) / np.exp(SCORES).sum(), 0)
    for step, token in enumerate(drawn.tokens[0, 1:]):
        # Four tokens and three, then one of them.
        among, inside = jax.random.split(jax.random.fold_in(key, step))
        of_halves = np.log([law[:4].sum(), law[4:].sum()])
        half = int(jnp.argmax(of_halves + jax.random.gumbel(among, (2,), mode="high")))
        of_tokens = jnp.log(law[4 * half :][:4])
        place = int(jnp.argmax(of_tokens + jax.random.gumbel(inside, (4,), mode="high")))
        assert int(token) == 4 * half + place


def test_nothing_is_reported_after_a_rows_end():
    model, variables = markov(np.zeros((4, 4)))
    drawn = generate(
        model, variables, np.zeros((16, 1), int), 9, seed=0, sampling=Sampling(eos_id=3, pad_id=2)
    )
    after = np.arange(9) >= np.asarray(drawn.lengths)[:, None]
    assert 0 < after.sum() < after.size
    for reported in (drawn.raw_log_probs, drawn.behavior_log_probs):
        np.testing.assert_allclose(reported, np.where(after, 0, -np.log(4)), atol=1e-6)
    assert set(np.asarray(drawn.tokens)[:, 1:][after]) == {2}


def test_greedy_decoding_follows_the_argmax_of_the_full_forward(decoder):
    model, variables = decoder
    tokens, _ = ragged([6], 6)
    drawn = generate(model, variables, tokens, 10, seed=0, sampling=Sampling(temperature=0))
    logits = model.apply(variables, drawn.tokens)[0, 5:-1]
    np.testing.assert_array_equal(drawn.tokens[0, 6:], jnp.argmax(logits, axis=-1))
    np.testing.assert_array_equal(drawn.behavior_log_probs, 0)


SCORES = np.log([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Sampling(), [0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01]),
        (Sampling(temperature=0.5), [0.16, 0.0625, 0.0225, 0.01, 0.0036, 0.0009, 0.0001]),
        (Sampling(top_k=3), [0.4, 0.25, 0.15, 0, 0, 0, 0]),
        (Sampling(top_p=0.85), [0.4, 0.25, 0.15, 0.1, 0, 0, 0]),
        (Sampling(min_p=0.2), [0.4, 0.25, 0.15, 0.1, 0, 0, 0]),
        (Sampling(temperature=2.0, top_k=4, top_p=0.8), [0.4**0.5, 0.5, 0.15**0.5, 0, 0, 0, 0]),
    ],
)
def test_draws_follow_the_filtered_distribution(policy, expected):
    count = 20_000
    law = np.asarray(expected) / np.sum(expected)
    model, variables = markov(np.tile(SCORES, (7, 1)))
    drawn = generate(model, variables, np.zeros((count, 1), np.int32), 1, seed=11, sampling=policy)
    seen = np.bincount(np.asarray(drawn.tokens)[:, 1], minlength=7)
    live = law > 0
    assert seen[~live].sum() == 0
    chi_square = np.sum((seen[live] - count * law[live]) ** 2 / (count * law[live]))
    # The 99.9th percentile of chi-square with 6 degrees of freedom; fewer degrees lie lower.
    assert chi_square < 22.5
    np.testing.assert_allclose(
        drawn.behavior_log_probs[:, 0], np.log(law[np.asarray(drawn.tokens)[:, 1]]), atol=2e-6
    )


def test_successive_draws_are_independent():
    model, variables = markov(np.zeros((2, 2)))
    drawn = np.asarray(generate(model, variables, np.zeros((8000, 1), np.int32), 2, seed=2).tokens)[:, 1:]
    pairs = np.bincount(2 * drawn[:, 0] + drawn[:, 1], minlength=4)
    assert np.sum((pairs - 2000) ** 2 / 2000) < 16.3


def test_both_likelihoods_of_a_sharpened_draw():
    model, variables = markov([[2.0, 1.0, 0.0]] * 3)
    for policy, behavior in ((Sampling(temperature=0.5), -0.1429317), (Sampling(top_k=2), -0.3132617)):
        drawn = generate(model, variables, np.zeros((64, 1), np.int32), 1, seed=0, sampling=policy)
        zeros = np.asarray(drawn.tokens)[:, 1] == 0
        np.testing.assert_allclose(drawn.behavior_log_probs[zeros, 0], behavior, atol=1e-6)
        np.testing.assert_allclose(drawn.raw_log_probs[zeros, 0], -0.4076059, atol=1e-6)


def test_the_end_token_ends_a_row_and_counts():
    model, variables = certain(0, 1, 2, 3, 0)
    drawn = generate(model, variables, [[1], [3]], 5, seed=0, sampling=Sampling(eos_id=3, pad_id=9))
    assert drawn.tokens.tolist() == [[1, 2, 3, 9, 9, 9], [3, 0, 1, 2, 3, 9]]
    assert drawn.lengths.tolist() == [2, 4]
    assert drawn.terminated.tolist() == [True, True]
    assert drawn.responses() == [[2], [0, 1, 2]]
    np.testing.assert_array_equal(drawn.raw_log_probs[0, 2:], 0)


def test_an_end_token_that_is_also_the_padding_is_counted_once():
    model, variables = certain(0, 1, 2, 0)
    drawn = generate(model, variables, [[1]], 4, seed=0, sampling=Sampling(eos_id=0, pad_id=0))
    assert (drawn.lengths.tolist(), drawn.responses()) == ([2], [[2]])


def test_a_budget_ends_a_row_without_terminating_it():
    model, variables = certain(0, 1, 2, 3, 0)
    policy = Sampling(eos_id=3)
    for stopping in (None, (MaxNewTokens(2),), (MaxLength(3),)):
        budget = 2 if stopping is None else 6
        drawn = generate(model, variables, [[0]], budget, seed=0, sampling=policy, stopping=stopping)
        assert (drawn.lengths.tolist(), drawn.terminated.tolist()) == ([2], [False])


def test_a_criterions_own_field_of_any_name_cuts_nothing_off():
    @flax.struct.dataclass
    class After:
        budget: int

        def __call__(self, state, drawn):
            return state.step >= self.budget

    @flax.struct.dataclass
    class Limit(After):
        cuts_off: ClassVar[bool] = True

    model, variables = certain(0, 1, 2, 3, 0)
    for stopping, terminated in (((After(2),), True), ((Limit(2),), False), ((Limit(2), After(2)), True)):
        drawn = generate(model, variables, [[0]], 6, seed=0, stopping=stopping)
        assert (drawn.lengths.tolist(), drawn.terminated.tolist()) == ([2], [terminated])


def test_further_criteria_stand_beside_the_policys_own():
    model, variables = certain(0, 1, 2, 3, 0)
    stopping = (EndOfSequence(1),)
    drawn = generate(model, variables, [[0], [1]], 6, seed=0, sampling=Sampling(eos_id=3), stopping=stopping)
    assert drawn.lengths.tolist() == [1, 2]
    assert drawn.terminated.tolist() == [True, True]


def test_an_explicit_chain_replaces_the_policys(decoder):
    model, variables = decoder
    tokens, _ = ragged([6], 6)
    policy = Sampling(temperature=0.1, top_k=1)
    drawn = generate(model, variables, tokens, 12, seed=0, sampling=policy, logits=())
    np.testing.assert_array_equal(drawn.behavior_log_probs, drawn.raw_log_probs)
    chained = generate(model, variables, tokens, 12, seed=0, logits=(Temperature(0.1), TopK(1)))
    same(generate(model, variables, tokens, 12, seed=0, sampling=policy), chained)


def test_a_transform_reads_each_rows_own_history():
    def unseen(state, logits):
        history, count = state.history()
        slots = jnp.arange(history.shape[1]) < count[:, None]
        seen = jnp.any(jax.nn.one_hot(history, logits.shape[1], dtype=bool) & slots[..., None], axis=1)
        return jnp.where(seen, -jnp.inf, logits)

    model, variables = markov(np.zeros((8, 8)))
    tokens = np.asarray([[5, 5, 5, 2], [1, 2, 3, 4]])
    mask = np.asarray([[False, False, False, True], [True, True, True, True]])
    drawn = generate(model, variables, inputs(tokens, mask), 4, seed=0, logits=(unseen,))
    rows = np.asarray(drawn.tokens)
    assert sorted(rows[1]) == list(range(8))
    assert len(set(rows[0, 3:])) == 5
    np.testing.assert_allclose(drawn.behavior_log_probs[0], -np.log([7, 6, 5, 4]), atol=1e-6)


def test_the_state_counts_prompt_and_draws():
    seen = []

    def spy(state, drawn):
        jax.debug.callback(
            lambda *values: seen.append([np.asarray(value).tolist() for value in values]),
            state.step,
            state.total(),
            state.prompt_history()[1],
            state.generated()[0][:, :2],
            ordered=True,
        )
        return jnp.zeros(drawn.shape, bool)

    model, variables = certain(0, 1, 2, 3, 0)
    mask = np.asarray([[0, 1], [1, 1]])
    generate(model, variables, inputs(np.asarray([[9, 0], [0, 1]]), mask), 2, seed=0, stopping=(spy,))
    jax.effects_barrier()
    assert seen == [
        [[1, 1], [2, 3], [1, 2], [[1, 0], [2, 0]]],
        [[2, 2], [3, 4], [1, 2], [[1, 2], [2, 3]]],
    ]


def test_a_model_without_a_distribution_is_named_with_row_and_step():
    table = np.zeros((3, 3))
    table[1, 2] = np.nan
    model, variables = markov(table)
    forced = (lambda state, logits: jnp.where(jnp.arange(3) == 1, 0.0, -jnp.inf) + 0 * logits,)
    with pytest.raises(FloatingPointError, match=r"row 1 .* token 0: the model's own logits"):
        generate(model, variables, [[0], [1]], 4, seed=0, sampling=Sampling(temperature=0))
    with pytest.raises(FloatingPointError, match=r"row 0 .* token 1"):
        generate(model, variables, [[0]], 4, seed=0, logits=forced)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_chain_that_leaves_no_distribution_is_refused(bad):
    model, variables = markov(np.zeros((3, 3)))
    with pytest.raises(FloatingPointError, match="chain of transforms"):
        generate(model, variables, [[0]], 2, seed=0, logits=(lambda state, logits: logits + bad,))


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens=0"),
        ({"max_new_tokens": 2.5}, ValueError, r"max_new_tokens=2\.5"),
        ({"max_new_tokens": 60}, ValueError, "max_seq_len=64"),
        ({"n": 0}, ValueError, "n=0"),
        ({"n": 2.0}, ValueError, r"n=2\.0"),
        ({"seed": None}, ValueError, "exactly one of key and seed"),
        ({"key": jax.random.key(0)}, ValueError, "exactly one of key and seed"),
        ({"seed": 0.5}, TypeError, "seed=0.5"),
        ({"seed": None, "key": jax.random.PRNGKey(0)}, TypeError, "typed key"),
        ({"seed": None, "key": jax.random.split(jax.random.key(0), 3)}, ValueError, "each of the 2 rows"),
        ({"strategy": object()}, ValueError, "strategy="),
        ({"logits": (3,)}, TypeError, "must be callable"),
        ({"sampling": Sampling(eos_id=4)}, ValueError, "eos_id=4"),
        ({"inputs": np.zeros((2, 5))}, TypeError, "float64"),
        ({"inputs": np.zeros((2, 5), bool)}, TypeError, "bool"),
        ({"inputs": np.zeros(5, int)}, ValueError, r"\(5,\)"),
        ({"inputs": np.full((2, 5), 4)}, ValueError, "row 0 holds the id 4"),
        (
            {"inputs": inputs(np.zeros((2, 5), int), np.arange(10).reshape(2, 5) > 5)},
            ValueError,
            "row 0 holds no",
        ),
        ({"inputs": inputs(np.zeros((2, 5), int), np.ones((2, 4)))}, ValueError, "attention_mask has shape"),
        ({"inputs": ModelInputs(np.zeros((2, 5), int), {"images": np.ones((2, 5))})}, ValueError, "images"),
        (
            {"inputs": ModelInputs(np.zeros((2, 5), int), conditions={"style": np.ones(2)})},
            ValueError,
            "style",
        ),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_before_compiling(arguments, error, named):
    model, variables = markov(np.zeros((4, 4)))
    given = {"inputs": np.zeros((2, 5), int), "max_new_tokens": 4, "seed": 0} | arguments
    before = operations.read_prompts._cache_size()
    with pytest.raises(error, match=named):
        generate(model, variables, given.pop("inputs"), given.pop("max_new_tokens"), **given)
    assert operations.read_prompts._cache_size() == before


def test_a_model_that_is_not_causal_is_refused():
    with pytest.raises(ValueError, match="causal=False"):
        generate(Chain(3, causal=False), {"params": {"table": jnp.zeros((3, 3))}}, [[0]], 2, seed=0)


def test_only_real_tokens_count_against_the_models_length():
    model, variables = markov(np.zeros((4, 4)))
    mask = np.arange(200) >= 150
    drawn = generate(model, variables, inputs(np.zeros((1, 200), int), mask[None]), 14, seed=0)
    assert drawn.tokens.shape == (1, 214)


def test_calls_of_many_lengths_and_temperatures_share_few_executables():
    model, variables = markov(np.random.default_rng(0).normal(size=(5, 5)))
    before = loop.advance._cache_size()
    for index in range(12):
        policy = Sampling(temperature=0.5 + index / 10, top_p=0.9 - index / 100)
        tokens = np.zeros((1, 1 + 2 * index), np.int32)
        generate(model, variables, tokens, 5 + 2 * index, seed=index, sampling=policy, strategy=Sample())
    assert loop.advance._cache_size() - before <= 4


def test_lengths_within_known_buckets_compile_nothing(caplog):
    model, variables = markov(np.random.default_rng(0).normal(size=(7, 7)))

    def call(length, budget):
        return generate(model, variables, np.full((2, length), 3), budget, seed=length, n=2).host()

    call(9, 9)
    caplog.clear()
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        for length, budget in ((5, 9), (16, 12), (3, 4)):
            assert call(length, budget).tokens.shape == (4, length + budget)
    assert [each.getMessage() for each in caplog.records if "Finished XLA" in each.getMessage()] == []


def test_device_arrays_and_host_arrays_give_the_same_rows(decoder):
    model, variables = decoder
    tokens, mask = ragged([3, 6], 6)
    on_device = inputs(jnp.asarray(tokens), jnp.asarray(mask))
    same(
        generate(model, variables, inputs(tokens, mask), 8, seed=0),
        generate(model, variables, on_device, 8, seed=0),
    )


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="must fit 64 bits"):
        row_keys(None, 2**64, 1)
