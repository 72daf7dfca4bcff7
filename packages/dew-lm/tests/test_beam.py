"""Beam search against transformers' results, against enumeration, and what it refuses."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.inputs import ModelInputs
from dew.nn.sharding import unboxed
from dew.sampling import Beam, Sampling, generate
from dew.sampling.decoding import EndOfSequence, TopK
from dew.sampling.text import Decoding, beam_search

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_beam_golden", ROOT / "tools/make_beam_golden.py")
assert SPEC is not None and SPEC.loader is not None
golden = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden)

CASES = json.loads(golden.GOLDEN.read_text())["cases"]
MODEL = CausalTransformer(
    vocab_size=23,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    max_seq_len=64,
    precision="highest",
)


def drawn_variables():
    template = unboxed(jax.eval_shape(MODEL.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    leaves = flatten_dict(template["params"], sep="/")
    drawn = {path: jnp.asarray(golden.draw(path, leaf.shape)) for path, leaf in leaves.items()}
    return {"params": unflatten_dict(drawn, sep="/")}


VARIABLES = drawn_variables()


class Chain(nn.Module):
    """A Markov chain as a decoder: row i of its table is the logits after token i."""

    vocab_size: int = 4
    max_seq_len: int = 64

    def setup(self):
        self.table = self.param("table", nn.initializers.zeros, (self.vocab_size, self.vocab_size))

    def init_cache(self, rows, capacity):
        return {}

    def head_weight(self, params):
        return jnp.eye(self.vocab_size)

    def decode(self, tokens, positions, valid, cache):
        return self.table[tokens], cache


def prompts():
    ids, mask = golden.prompts()
    return ModelInputs(ids.astype(np.int32), {"attention_mask": mask})


def one_of_a_pair_only(state, scores):
    """No pair of neighbours comes twice: `no_repeat_ngram_size=2`."""
    tokens, count = state.history()
    last = jnp.take_along_axis(tokens, (count - 1)[:, None], axis=1)
    again = (tokens[:, :-1] == last) & (jnp.arange(1, tokens.shape[1]) < count[:, None])
    rows = jnp.arange(tokens.shape[0])[:, None]
    banned = jnp.zeros(scores.shape, bool).at[rows, tokens[:, 1:]].max(again)
    return jnp.where(banned, -jnp.inf, scores)


def chain_of(case):
    if "repeat" in case:
        return (one_of_a_pair_only,)
    if "ban" in case:
        banned = np.isin(np.arange(23), case["ban"])
        return (jax.tree_util.Partial(lambda mask, state, scores: jnp.where(mask, -jnp.inf, scores), banned),)
    return None


def searched(case):
    """Sequences up to their ends, scores, and the record of a case."""
    strategy = Beam(
        width=case["width"],
        length_penalty=case["penalty"],
        early_stopping=case["early"],
        stop_ids=max(1, len(case["eos"])),
    )
    inputs = prompts()
    if "repeat" in case:
        inputs = inputs.tokens[1:2]
    decoding = Decoding.prepare(
        MODEL,
        VARIABLES,
        inputs,
        case["budget"],
        seed=0,
        n=case["n"],
        sampling=Sampling(eos_id=tuple(case["eos"]), pad_id=golden.PAD),
        logits=chain_of(case),
        strategy=strategy,
    )
    draws = decoding.draws()
    record = decoding.record(draws)
    rows = np.asarray(record.tokens)[:, 5:]
    kept = [row[:length].tolist() for row, length in zip(rows, record.lengths, strict=True)]
    return kept, np.asarray(draws.scores), record


@pytest.mark.parametrize("index", range(len(CASES)))
def test_sequences_and_scores_are_those_of_transformers(index):
    case = CASES[index]
    kept, scores, record = searched(case)
    assert kept == case["tokens"]
    np.testing.assert_allclose(scores, case["scores"], atol=2e-5, rtol=2e-5)
    ended = [row[-1] in case["eos"] for row in kept]
    assert record.terminated.tolist() == ended


@pytest.mark.oracle
@pytest.mark.parametrize("index", range(0, len(CASES), 4))
def test_sequences_and_scores_are_those_of_transformers_live(index):
    pytest.importorskip("transformers")
    found = golden.reference(golden.reference_model(), CASES[index])
    kept, scores, _ = searched(CASES[index])
    assert kept == found["tokens"]
    np.testing.assert_allclose(scores, found["scores"], atol=2e-5, rtol=2e-5)


def test_raw_likelihoods_are_the_models_own_and_behavior_is_certain():
    _, scores, record = searched(CASES[4])
    ids, mask = golden.prompts()
    for row in range(9):
        prompt = ids[row // 3][mask[row // 3]]
        length = int(record.lengths[row])
        tokens = np.concatenate([prompt, np.asarray(record.tokens)[row, 5 : 5 + length]])
        logits = MODEL.apply(VARIABLES, tokens[None, :-1])[0]
        own = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(tokens) - 1), tokens[1:]]
        np.testing.assert_allclose(record.raw_log_probs[row, :length], own[len(prompt) - 1 :], atol=2e-5)
        assert float(jnp.sum(record.raw_log_probs[row])) / length ** CASES[4]["penalty"] == pytest.approx(
            float(scores[row]), abs=2e-5
        )
    np.testing.assert_array_equal(record.behavior_log_probs, 0)


def test_one_beam_is_greedy_decoding():
    policy = Sampling(temperature=0, eos_id=3, pad_id=golden.PAD)
    greedy = generate(MODEL, VARIABLES, prompts(), 12, seed=0, sampling=policy)
    beam = generate(
        MODEL, VARIABLES, prompts(), 12, seed=1, sampling=policy, strategy=Beam(early_stopping=True)
    )
    np.testing.assert_array_equal(greedy.tokens, beam.tokens)
    np.testing.assert_allclose(greedy.raw_log_probs, beam.raw_log_probs, atol=1e-6)


def test_a_prompt_finds_alone_what_it_finds_among_others():
    ids, mask = golden.prompts()
    strategy = Beam(width=3, length_penalty=0.7)
    policy = Sampling(eos_id=3, pad_id=golden.PAD)
    options = {"sampling": policy, "strategy": strategy, "n": 2, "seed": 0}
    together = generate(MODEL, VARIABLES, prompts(), 9, **options)
    for row in range(3):
        alone = generate(MODEL, VARIABLES, ids[row : row + 1, mask[row]], 9, **options)
        np.testing.assert_array_equal(
            alone.tokens[:, -9:], np.asarray(together.tokens)[2 * row : 2 * row + 2, 5:]
        )


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beams_for_every_prefix_find_the_best_of_all_continuations(penalty):
    rng = np.random.default_rng(5)
    table = jax.nn.log_softmax(jnp.asarray(2 * rng.normal(size=(4, 4)), jnp.float32))
    end, budget = 3, 4

    def score(path):
        steps = zip((0, *path), path, strict=False)
        return float(sum(table[here, there] for here, there in steps)) / len(path) ** penalty

    paths = [
        path
        for length in range(1, budget + 1)
        for path in itertools.product(range(4), repeat=length)
        if end not in path[:-1] and (path[-1] == end or length == budget)
    ]
    ranked = sorted(paths, key=score, reverse=True)[:5]
    draws = chain_draws(table, budget, Beam(width=64, length_penalty=penalty, early_stopping="never"), end)
    found = [
        tuple(row[:length].tolist())
        for row, length in zip(np.asarray(draws.tokens), np.asarray(draws.lengths), strict=True)
    ]
    assert found == ranked
    np.testing.assert_allclose(draws.scores, [score(path) for path in ranked], rtol=1e-5)


def chain_draws(table, budget, strategy, end):
    sampling = Sampling(eos_id=end)
    return Decoding.prepare(
        Chain(),
        {"params": {"table": table}},
        [[0]],
        budget,
        seed=0,
        n=5,
        sampling=sampling,
        strategy=strategy,
    ).draws()


def test_penalties_and_budgets_share_an_executable():
    before = beam_search.search._cache_size()
    for penalty, budget in ((1.0, 3), (0.5, 9), (-1.0, 14)):
        strategy = Beam(width=2, length_penalty=penalty, early_stopping=True)
        generate(MODEL, VARIABLES, prompts(), budget, seed=0, sampling=Sampling(pad_id=22), strategy=strategy)
    assert beam_search.search._cache_size() - before <= 1


def test_fewer_continuations_than_were_asked_for_are_an_error():
    with pytest.raises(FloatingPointError, match="fewer continuations than were asked for"):
        generate(
            MODEL,
            VARIABLES,
            prompts(),
            1,
            seed=0,
            n=3,
            logits=(lambda state, scores: jnp.where(jnp.arange(23) < 2, scores, -jnp.inf),),
            strategy=Beam(width=3),
        )


def test_a_model_without_a_distribution_is_named():
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, VARIABLES)
    with pytest.raises(FloatingPointError, match=r"row 0 .* the model's own logits"):
        generate(MODEL, broken, prompts(), 3, seed=0, strategy=Beam(width=2))
    with pytest.raises(FloatingPointError, match=r"row 0 .* the chain of transforms"):
        generate(
            MODEL,
            VARIABLES,
            prompts(),
            3,
            seed=0,
            logits=(lambda state, scores: scores - jnp.inf,),
            strategy=Beam(width=2),
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"n": 4}, r"n=4 is above Beam\(width=3\)"),
        ({"sampling": Sampling(temperature=0.7)}, "temperature=0.7 with strategy=Beam"),
        ({"sampling": Sampling(top_k=5)}, "top_k=5 with strategy=Beam"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p=0.9 with strategy=Beam"),
        ({"sampling": Sampling(eos_id=(1, 2))}, r"2 ids end a row, and Beam\(stop_ids=1\)"),
        ({"sampling": Sampling(eos_id=1), "stopping": (EndOfSequence(2),)}, "2 ids end a row"),
        ({"strategy": Beam(width=1, stop_ids=23)}, "keeps 24 extensions"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_compiling(arguments, named):
    given = {"strategy": Beam(width=3), "seed": 0} | arguments
    before = beam_search.search._cache_size()
    with pytest.raises(ValueError, match=named):
        generate(MODEL, VARIABLES, prompts(), 4, **given)
    assert beam_search.search._cache_size() == before


def test_an_explicit_chain_of_filters_ranks_the_beams():
    given = {"seed": 0, "sampling": Sampling(pad_id=22, temperature=0.7), "logits": (TopK(1),)}
    narrowed = generate(MODEL, VARIABLES, prompts(), 6, strategy=Beam(width=2), **given)
    greedy = generate(MODEL, VARIABLES, prompts(), 6, seed=0, sampling=Sampling(temperature=0, pad_id=22))
    np.testing.assert_array_equal(narrowed.tokens, greedy.tokens)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"width": 0}, "width=0"),
        ({"stop_ids": 0}, "stop_ids=0"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"early_stopping": "always"}, "early_stopping='always'"),
    ],
)
def test_fields_out_of_range_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Beam(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {"stop_ids": (1, 3)},
            r"stop_ids=\(1, 3\) must be an integer: how many ids end a row; which they are, Sa",
        ),
        ({"width": 2.0}, r"width=2\.0 must be an integer"),
        ({"width": True}, "width=True must be an integer"),
        ({"length_penalty": "1"}, "length_penalty='1' must be a number"),
        ({"early_stopping": 1}, "early_stopping=1 must be False, True or 'never'"),
    ],
)
def test_fields_of_another_kind_are_refused(fields, named):
    with pytest.raises(TypeError, match=named):
        Beam(**fields)
