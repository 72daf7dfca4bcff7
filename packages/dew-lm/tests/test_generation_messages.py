"""What generation and scoring refuse, in the words of who asked."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.data.text import ByteTokenizer
from dew.eval.perplexity import corpus_perplexity, text_perplexity
from dew.eval.perplexity.text import TokenArray
from dew.inference.text import RunProcessor, TextGeneration
from dew.inference.text.options import TextOptions
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling, generate
from dew.sampling.decoding import EndOfSequence

MODEL = CausalTransformer(
    vocab_size=256, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, max_seq_len=16
)
VARIABLES = nn.unbox(MODEL.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
ROW = np.asarray([[1, 2]])


def narrowed(state, logits):
    return logits[:, :200]


def test_a_transform_that_changes_the_vocabularys_width_is_named_with_both():
    with pytest.raises(ValueError, match=r"narrowed turns scores over 256 ids.*into \[\d+, 200\]"):
        generate(MODEL, VARIABLES, ROW, 2, seed=0, logits=(narrowed,))


@pytest.mark.parametrize("name", ["logits", "stopping"])
def test_a_part_by_itself_is_refused_with_how_to_write_it(name):
    part = {name: EndOfSequence((3,))}
    task = TextGeneration(MODEL, VARIABLES)
    for ask in (
        lambda: generate(MODEL, VARIABLES, ROW, 2, seed=0, **part),
        lambda: task(ROW, 2, seed=0, **part),
        lambda: TextGeneration(MODEL, VARIABLES, **part),
    ):
        with pytest.raises(
            TypeError, match=rf"{name}=EndOfSequence.* must be a sequence; write {name}=\(part,\)"
        ):
            ask()


def test_a_context_beyond_the_model_is_named_as_it_was_given():
    with pytest.raises(ValueError, match=r"context=4096 must be at most 17: the model reads max_seq_len=16"):
        corpus_perplexity(MODEL, VARIABLES, TokenArray(np.zeros(9, np.uint32)), context=4096, stride=8)


def test_a_text_is_scored_with_the_tokenizer_of_a_tasks_processor():
    scored = [
        text_perplexity(MODEL, VARIABLES, "a text", each, context=8, stride=4).per_token
        for each in (ByteTokenizer(), RunProcessor(ByteTokenizer()))
    ]
    assert scored[0] == scored[1] and math.isfinite(scored[0])


@pytest.fixture
def task():
    return TextGeneration(MODEL, VARIABLES, RunProcessor(ByteTokenizer()), max_new_tokens=4)


def options(tmp_path, **fields):
    (tmp_path / "prompts.txt").write_text("ab\nabc\nb\nabcd\n")
    return TextOptions(
        prompts=str(tmp_path / "prompts.txt"), sampling=Sampling(), n=2, batch=1, max_new_tokens=4, **fields
    )


def test_a_prompt_without_room_is_named_by_its_line_before_anything_is_written(task, tmp_path):
    asked = options(tmp_path, output=str(tmp_path / "out.jsonl"))
    (tmp_path / "prompts.txt").write_text("ab\nabc\nabcdefghijklmno\n")
    with pytest.raises(
        ValueError, match=r"prompts\.txt, line 3: the prompt has 15 tokens, and max_new_tokens=4 "
    ):
        list(asked.respond(task, seed=0))
    assert not (tmp_path / "out.jsonl").exists()


def test_an_interrupted_call_says_where_it_stands_and_can_go_on(task, tmp_path, monkeypatch):
    whole, first, rest = (tmp_path / name for name in ("whole", "first", "rest"))
    list(options(tmp_path, output=str(whole)).respond(task, seed=0))
    draw, calls = TextGeneration.__call__, []

    def stopped(*args, **fields):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw(*args, **fields)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=r"4 responses .* --skip 2 "):
        patch.setattr(TextGeneration, "__call__", stopped)
        list(options(tmp_path, output=str(first)).respond(task, seed=0))
    list(options(tmp_path, output=str(rest), skip=2).respond(task, seed=0))
    assert first.read_text() + rest.read_text() == whole.read_text()
    assert [json.loads(line)["continuation"] for line in whole.read_text().splitlines()] == [0, 1] * 4


def test_a_published_model_without_a_tokenizer_is_refused_before_it_is_read(tmp_path):
    class Published:
        folder, tokenizer = "some/folder", None

    with pytest.raises(ValueError, match=r"some/folder holds no tokenizer\.json"):
        TextOptions(prompt=("hi",)).check(Published())
