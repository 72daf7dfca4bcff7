"""`stop_strings`: the rows that transformers ends, over four kinds of vocabulary, and what it refuses."""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import models

from dew.data.text import ByteTokenizer
from dew.inference.text import RunProcessor
from dew.sampling import StepState, decoding
from dew.sampling.text.cutting import cut, pending

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location(
    "make_stop_strings_golden", ROOT / "tools/make_stop_strings_golden.py"
)
assert SPEC is not None and SPEC.loader is not None
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)
ended = jax.jit(lambda criterion, state, drawn: criterion(state, drawn))


def rows_of(ids, prompt=2):
    """`ids` with their first `prompt` columns as the prompt, behind one slot of padding that reads `p`."""
    ids = np.asarray(ids)
    padding = np.full((len(ids), 1), ord("p"), np.int32)
    state = StepState(
        tokens=np.concatenate([padding, ids], axis=1),
        valid=np.concatenate([np.zeros(padding.shape, bool), np.ones(ids.shape, bool)], axis=1),
        step=np.full(len(ids), ids.shape[1] - prompt, np.int32),
        active=np.ones(len(ids), bool),
        keys=jax.random.split(jax.random.key(0), len(ids)),
        prompt_width=1 + prompt,
    )
    return state, ids[:, -1]


def stops(criterion, text, prompt=0):
    """Whether `text`, a token for each byte, ends with its last byte."""
    return bool(ended(criterion, *rows_of([list(text.encode())], prompt))[0])


@pytest.mark.parametrize("kind", reference.KINDS)
def test_a_row_ends_where_transformers_ends_it(kind):
    tokenizer = reference.KINDS[kind]()
    stored = json.loads(reference.GOLDEN.read_text())["ended"][kind]
    state, drawn = rows_of(reference.rows(kind, tokenizer))
    for string, bits in stored.items():
        expected = np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))[: reference.ROWS].astype(bool)
        assert expected.any()
        criterion = decoding.stop_strings(tokenizer, string)
        np.testing.assert_array_equal(ended(criterion, state, drawn), expected, err_msg=repr(string))


def test_several_strings_end_a_row_where_any_of_them_does():
    tokenizer = reference.byte_level()
    state, drawn = rows_of(reference.rows("byte_level", tokenizer))
    first, second, both = (
        np.asarray(ended(decoding.stop_strings(tokenizer, strings), state, drawn))
        for strings in ("stop", "\n\n", ["stop", "\n\n"])
    )
    np.testing.assert_array_equal(both, first | second)


def test_a_string_over_three_tokens_with_overhang_at_both_ends():
    vocab = {"alphabeta": 0, "Ġgam": 1, "madelta": 2, "x": 3, "Ġ": 4}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    criterion = decoding.stop_strings(tokenizer, "beta gamma")
    found = [bool(ended(criterion, *rows_of([row]))[0]) for row in ([3, 0, 1, 2], [0, 1, 2, 3], [0, 1, 3, 2])]
    assert found == [True, False, False]
    assert cut("alphabeta gammadelta", criterion.strings) == "alpha"


def test_a_string_inside_one_token_ends_the_row():
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "xstopx": 1}, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    assert bool(ended(decoding.stop_strings(tokenizer, "stop"), *rows_of([[0, 0, 1]]))[0])


def test_a_string_that_stands_before_the_drawn_token_ends_nothing():
    criterion = decoding.stop_strings(ByteTokenizer(), "stop")
    assert not stops(criterion, "stop!", prompt=4)
    assert not stops(criterion, "a stop later on", prompt=2)


def test_a_string_that_begins_in_the_prompt_ends_the_row():
    assert stops(decoding.stop_strings(ByteTokenizer(), "stop"), "a stop", prompt=5)


def test_padding_completes_no_string():
    """The slot before a row holds `p`."""
    assert not stops(decoding.stop_strings(ByteTokenizer(), "px"), "x")
    assert not stops(decoding.stop_strings(ByteTokenizer(), "xx"), "x")
    assert stops(decoding.stop_strings(ByteTokenizer(), "px"), "px")


def test_a_run_ends_at_the_bytes_of_a_character():
    criterion = decoding.stop_strings(RunProcessor(ByteTokenizer()), "🙂")
    assert stops(criterion, "a🙂")
    assert not bool(ended(criterion, *rows_of([list("a🙂".encode())[:-1]], 0))[0])


def test_ids_beyond_the_vocabulary_spell_nothing():
    criterion = decoding.stop_strings(ByteTokenizer(), "ab", vocab_size=300)
    assert criterion.classes.shape == (300,)
    assert not bool(ended(criterion, *rows_of([[97, 299]], 0))[0])
    assert not bool(ended(criterion, *rows_of([[97, 5000]], 0))[0])


class Marked:
    """A tokenizer of transformers without a backend: `_` begins a word, and the first one is dropped."""

    pieces = ("_a", "b", "_", "abcdef", "_b")

    def get_vocab(self):
        return {piece: number for number, piece in enumerate(self.pieces)}

    def encode(self, text, *, add_special_tokens):
        return [self.pieces.index(text)]

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[each] for each in ids]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).replace("_", " ").removeprefix(" ")


def test_a_tokenizer_without_a_backend_is_read_behind_an_ordinary_prefix():
    criterion = decoding.stop_strings(Marked(), "b a")
    found = [bool(ended(criterion, *rows_of([row], 0))[0]) for row in ([1, 0], [4, 0], [1, 2], [0, 0])]
    assert found == [True, True, False, False]


def test_what_may_begin_a_string_is_pending():
    strings = ("stop", "\n\n")
    found = {text: pending(text, strings) for text in ("", "a", "as", "a sto", "stop", "\n", "ts")}
    assert found == {"": 0, "a": 0, "as": 1, "a sto": 3, "stop": 0, "\n": 1, "ts": 1}
    assert cut("a\n\nb stop", strings) == "a"
    assert cut("nothing", strings) == cut("nothing", ()) == "nothing"


@pytest.mark.parametrize(
    ("strings", "named"),
    [([], "at least one character"), (["a", ""], "at least one character"), ("☃", "'☃'")],
)
def test_strings_that_could_end_nothing_are_refused(strings, named):
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(ValueError, match=named):
        decoding.stop_strings(tokenizer, strings)


def test_an_object_without_a_vocabulary_is_refused():
    with pytest.raises(TypeError, match="int is no tokenizer"):
        decoding.stop_strings(5, "a")


@pytest.mark.oracle
@pytest.mark.parametrize("kind", reference.KINDS)
def test_the_stored_ends_are_those_of_the_installed_transformers(kind):
    transformers = pytest.importorskip("transformers")
    tokenizer = reference.KINDS[kind]()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    state, drawn = rows_of(reference.rows(kind, tokenizer))
    strings = reference.STRINGS[kind]
    expected = reference.reference(tokenizer, strings, reference.rows(kind, tokenizer))
    np.testing.assert_array_equal(ended(decoding.stop_strings(wrapped, strings), state, drawn), expected)
    assert json.loads(reference.GOLDEN.read_text())["ended"][kind] == reference.golden()[kind]
