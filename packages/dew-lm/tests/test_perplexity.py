"""Perplexity of a corpus with a stride: by hand, against transformers' recipe, per token and per byte."""

import importlib.util
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.data import TokenBytes
from dew.data.text import ByteTokenizer, HFTokenizer
from dew.eval.perplexity import CorpusPerplexity, corpus_perplexity, text_perplexity
from dew.eval.perplexity.text import TokenArray
from dew.eval.perplexity.windows import ScoringWindows
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.lm import LMObjective

GOLDEN = json.loads((Path(__file__).with_name("golden") / "perplexity.json").read_text())
ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location(
    "make_perplexity_golden", ROOT / "tools/make_perplexity_golden.py"
)
weights = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(weights)


def source(count):
    return TokenArray(np.arange(count, dtype=np.uint16))


@pytest.mark.parametrize("count", [2, 5, 6, 7, 8, 9, 23])
@pytest.mark.parametrize(("context", "stride"), [(6, 1), (6, 2), (6, 5), (2, 1)])
def test_every_id_but_the_first_is_scored_once_with_enough_before_it(count, context, stride):
    windows = ScoringWindows(source(count), context=context, stride=stride)
    scored = []
    for index in range(len(windows)):
        ids, counted = windows[index]
        scored += ids[1:][counted].tolist()
        if index:
            assert np.flatnonzero(counted).min() + 1 >= context - stride
    assert scored == list(range(1, count))
    assert len(windows) == 1 + max(0, math.ceil((count - context) / stride))


def test_the_last_batch_is_filled_with_rows_that_score_nothing():
    windows = ScoringWindows(source(9), context=6, stride=2)
    ids, counted = windows.batch(2, 4)
    assert ids.shape == (4, 6) and counted.sum(1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 1, "stride": 1}, "context=1 must be at least 2"),
        ({"context": 8, "stride": 8}, "stride=8 must lie between 1 and context - 1 = 7"),
        ({"context": 8, "stride": 0}, "stride=0 must lie"),
    ],
)
def test_windows_that_leave_an_id_unscored_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ScoringWindows(source(20), **fields)


def test_one_id_predicts_nothing():
    with pytest.raises(ValueError, match="a corpus of 1 ids predicts none"):
        ScoringWindows(source(1), context=4, stride=2)


def llama():
    model = CausalTransformer(
        vocab_size=97,
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=96,
        max_seq_len=128,
        norm_eps=1e-2,
        precision="highest",
    )
    shapes = unboxed(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    leaves = flatten_dict(shapes["params"], sep="/")
    drawn = {path: jnp.asarray(weights.draw(path, leaf.shape), jnp.float32) for path, leaf in leaves.items()}
    return model, {"params": unflatten_dict(drawn, sep="/")}


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=lambda row: f"{row['context']}-{row['stride']}")
def test_the_loss_is_that_of_transformers_recipe(row):
    model, variables = llama()
    ids = TokenArray(np.asarray(GOLDEN["ids"], np.uint16))
    found = corpus_perplexity(model, variables, ids, context=row["context"], stride=row["stride"], batch=4)
    expected = sum(mean * counted for mean, counted in row["windows"])
    assert found.tokens == sum(counted for _, counted in row["windows"]) == len(GOLDEN["ids"]) - 1
    assert found.nats == pytest.approx(expected, rel=2e-6)
    assert found.per_token == pytest.approx(math.exp(expected / 60), rel=2e-5)


SMALL = CausalTransformer(vocab_size=400, hidden_size=8, num_layers=1, num_heads=1, max_seq_len=64)


def small():
    return LMObjective(SMALL, 63, ema_decay=None).init(jax.random.key(3))


def test_one_window_is_the_models_own_likelihood():
    ids = np.random.default_rng(0).integers(0, 400, 30)
    source = TokenArray(ids.astype(np.uint16))
    found = corpus_perplexity(SMALL, small(), source, context=40, stride=20, size=100)
    logits = np.asarray(SMALL.apply(small(), jnp.asarray(ids[None, :-1])), np.float64)[0]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -log_probs[np.arange(29), ids[1:]].sum()
    assert found.nats == pytest.approx(nats, rel=1e-6)
    assert found.bits_per_byte == pytest.approx(nats / 100 / math.log(2), rel=1e-6)
    assert found.per_byte == pytest.approx(math.exp(nats / 100), rel=1e-6)


@pytest.mark.parametrize("prefix", [None, 0])
def test_bytes_are_those_that_the_scored_tokens_spell(prefix):
    tokenizer = HFTokenizer(Path(__file__).with_name("golden") / "chat" / "byte_level")
    text = "The model answers naïvely 😀."
    found = text_perplexity(SMALL, small(), text, tokenizer, context=32, stride=8, prefix=prefix)
    ids = tokenizer.encode(text)
    first = len(tokenizer.decode(ids[:1]).encode()) if prefix is None else 0
    assert (found.tokens, found.size) == (len(ids) - (prefix is None), len(text.encode()) - first)


def test_a_byte_is_a_byte():
    found = text_perplexity(SMALL, small(), "é and so on", ByteTokenizer(), context=8, stride=4)
    assert (found.tokens, found.size) == (11, 11) and found.per_byte == found.per_token


def test_an_id_that_the_model_does_not_have_is_refused_before_scoring(tmp_path):
    np.array([1, 2, 3, 500, 5] * 20, "<u2").tofile(tmp_path / "x.bin")
    refused = r"x\.bin holds the id 500 at 3, and the model has ids 0 to 399"
    with pytest.raises(ValueError, match=refused):
        corpus_perplexity(SMALL, small(), TokenBytes(tmp_path / "x.bin", "uint16"), context=32, stride=16)


@pytest.mark.parametrize(
    ("prefix", "error", "message"),
    [
        (9999, ValueError, "prefix=9999 must be one of the model's ids, 0 to 399"),
        (-1, ValueError, "prefix=-1 must be one of the model's ids"),
        (1.5, TypeError, r"prefix=1\.5 must be an integer"),
    ],
)
def test_a_prefix_that_is_no_id_of_the_model_is_refused(prefix, error, message):
    with pytest.raises(error, match=message):
        text_perplexity(SMALL, small(), "text", ByteTokenizer(), context=8, stride=4, prefix=prefix)


def test_numbers_per_byte_need_the_number_of_bytes():
    with pytest.raises(ValueError, match="nobody said how many bytes"):
        CorpusPerplexity(nats=1.0, tokens=2).bits_per_byte  # noqa: B018
    assert CorpusPerplexity(nats=1e6, tokens=1).per_token == math.inf


@pytest.mark.oracle
def test_the_golden_windows_are_what_transformers_gives_here(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_perplexity_golden as maker

    scorer = maker.model()
    for row in GOLDEN["rows"]:
        found = maker.windows(scorer, row["context"], row["stride"])
        np.testing.assert_allclose(found, row["windows"], rtol=1e-6)
