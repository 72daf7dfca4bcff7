"""The text generation task: requests, precedence of controls, streams."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.data.text import ByteTokenizer
from dew.inference import RunProcessor, TextGeneration
from dew.inference.text.processor import settled
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Beam, Sampling
from dew.sampling.decoding import MaxNewTokens, TopK, stop_strings
from dew.sampling.text import loop

CYCLE = "é🙂x"
GREEDY = Sampling(temperature=0)


class Bytes(nn.Module):
    """A decoder over bytes that goes through the UTF-8 bytes of `CYCLE` again and again."""

    vocab_size: int = 256
    max_seq_len: int = 128
    causal: bool = True
    final_logit_softcap: float | None = None
    precision: None = None

    def init_cache(self, rows, capacity):
        return {}

    def head_weight(self, params):
        return params["params"]["head"]

    def decode(self, tokens, positions, valid, cache):
        return jax.nn.one_hot(tokens, 256), cache


def cycling(**settings):
    table = np.zeros((256, 256), np.float32)
    for here, there in itertools.pairwise((CYCLE + CYCLE).encode()):
        table[here, there] = 50.0
    processor = RunProcessor(ByteTokenizer())
    return TextGeneration(Bytes(), {"params": {"head": jnp.asarray(table)}}, processor, **settings)


@pytest.fixture(scope="module")
def drawing():
    """A task over a random transformer, its draws far from certain."""
    model = CausalTransformer(
        vocab_size=256, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_seq_len=128
    )
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    return TextGeneration(model, variables, RunProcessor(ByteTokenizer()))


def test_a_text_is_continued_by_its_bytes():
    assert cycling()("x", 14, seed=0, sampling=GREEDY).text == (CYCLE + CYCLE,)


def test_texts_of_unequal_length_are_one_batch():
    drawn = cycling()(["x", "🙂x"], 7, seed=0, sampling=GREEDY)
    assert drawn.text == (CYCLE, CYCLE)
    assert drawn.tokens.shape == (2, 12)


def test_an_empty_prompt_continues_a_newline(drawing):
    assert drawing("", 8, seed=0).text == drawing("\n", 8, seed=0).text


@pytest.mark.parametrize(
    "request_", [[120], [[120]], np.asarray([120]), np.asarray([[120]]), jnp.asarray([[120]]), ("x",), "x"]
)
def test_every_form_of_one_request_is_the_same_row(request_):
    assert cycling()(request_, 7, seed=0, sampling=GREEDY).text == (CYCLE,)


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (["x", [120]], TypeError, "mixes texts and token rows"),
        (["x", [{"role": "user", "content": "x"}]], TypeError, "mixes conversations and texts"),
        ([{"role": "user", "content": "x"}], ValueError, "no chat template"),
        (5, TypeError, "request=5 must be a text"),
        ([[120, 0.5]], TypeError, "0.5"),
        ([[True]], TypeError, "True"),
        ([["x"]], TypeError, "'x'"),
        ([], ValueError, "empty"),
        ([[]], ValueError, "no real token"),
        ("a\udcff", ValueError, "UTF-8"),
    ],
)
def test_a_request_that_is_no_row_is_refused(request_, error, named):
    with pytest.raises(error, match=named):
        cycling()(request_, 4, seed=0)


def test_a_task_without_a_processor_serves_token_rows_alone():
    task = cycling()
    bare = TextGeneration(task.model, task.variables, sampling=GREEDY)
    drawn = bare([[120]], 7, seed=0)
    assert task.decode(drawn) == (CYCLE,)
    for call in (lambda: bare("x", 4, seed=0), lambda: drawn.text, lambda: bare.decode(drawn)):
        with pytest.raises(ValueError, match=r"processor|token ids alone"):
            call()


def test_images_are_refused():
    with pytest.raises(ValueError, match="images"):
        cycling()("x", 4, seed=0, images=object())


def test_the_budget_comes_from_the_call_then_the_task_then_its_whole_length():
    def width(task, *budget):
        return task("xxx", *budget, seed=0).raw_log_probs.shape[1]

    assert width(cycling(max_new_tokens=6, max_length=9), 4) == 4
    assert width(cycling(max_new_tokens=6, max_length=9)) == 6
    assert width(cycling(max_length=9)) == 6
    with pytest.raises(ValueError, match="max_new_tokens"):
        width(cycling())
    with pytest.raises(ValueError, match="max_length=3"):
        width(cycling(max_length=3))


def test_a_calls_count_replaces_the_tasks(drawing):
    task = TextGeneration(drawing.model, drawing.variables, drawing.processor, n=3)
    assert len(task("x", 4, seed=0).text) == 3
    assert task("x", 4, seed=0, n=1).text == task("x", 4, seed=0).text[:1]


def test_a_policy_given_to_a_call_clears_the_bound_chain(drawing):
    task = TextGeneration(drawing.model, drawing.variables, drawing.processor, logits=(TopK(1),))
    bound = task("x", 8, seed=0)
    np.testing.assert_array_equal(bound.behavior_log_probs, 0)
    assert task("x", 8, seed=0, sampling=Sampling()).text == drawing("x", 8, seed=0).text


def test_criteria_given_to_a_call_replace_the_tasks():
    task = cycling(sampling=GREEDY, stopping=(MaxNewTokens(2),))
    assert task("x", 7, seed=0).lengths.tolist() == [2]
    assert task("x", 7, seed=0, stopping=()).lengths.tolist() == [7]


def test_binding_keeps_executables_and_the_first_tasks_weights(drawing):
    variables = jax.tree.map(lambda leaf: leaf + 0.3, drawing.variables)
    before = drawing("abc", 8, seed=0)
    compiled = loop.advance._cache_size()
    other = drawing.bind(variables)
    assert not np.array_equal(other("abc", 8, seed=0).raw_log_probs, before.raw_log_probs)
    np.testing.assert_array_equal(drawing("abc", 8, seed=0).raw_log_probs, before.raw_log_probs)
    assert loop.advance._cache_size() == compiled


def test_a_task_keeps_the_mapping_it_was_given():
    task = cycling()
    mapping = {"params": dict(task.variables["params"])}
    held = TextGeneration(task.model, mapping, task.processor, sampling=GREEDY)
    mapping["params"].clear()
    assert held("x", 7, seed=0).text == (CYCLE,)


@pytest.mark.parametrize("budget", [1, 15, 16, 17, 50])
def test_a_stream_is_the_text_of_one_call(drawing, budget):
    policy = Sampling(temperature=1.3, top_k=200)
    whole = drawing("def ", budget, seed=4, sampling=policy).text
    assert "".join(drawing.stream("def ", budget, seed=4, sampling=policy)) == whole[0]


def test_a_stream_writes_whole_characters():
    pieces = list(cycling().stream("x", 45, seed=0, sampling=GREEDY))
    assert len(pieces) == 3
    assert [piece for piece in pieces[:-1] if "\ufffd" in piece] == []
    assert "".join(pieces) == (CYCLE.encode() * 7)[:45].decode(errors="replace")


def test_a_stream_ends_before_its_end_token():
    pieces = list(cycling().stream("x", 45, seed=0, sampling=Sampling(temperature=0, eos_id=ord("x"))))
    assert "".join(pieces) == "é🙂"


def test_a_stream_refuses_before_it_is_read():
    for request, budget in (("x", 1000), (["x", "y"], 4), ("x", None)):
        with pytest.raises(ValueError, match=r"max_seq_len|one prompt|max_new_tokens"):
            cycling().stream(request, budget, seed=0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("ab", "ab"), ("ab\ufffd", "ab"), ("a\ufffdb", "a\ufffdb"), ("\ufffd" * 5, "\ufffd" * 2)],
)
def test_only_an_unfinished_end_is_held_back(text, kept):
    assert settled(text) == kept


def test_text_ends_where_a_stop_string_begins():
    task = cycling(sampling=GREEDY, stopping=(stop_strings(ByteTokenizer(), "🙂x"),))
    drawn = task("x", 30, seed=0)
    assert drawn.lengths.tolist() == [7]
    assert drawn.terminated.tolist() == [True]
    assert drawn.text == task.decode(drawn) == ("é",)
    assert task("x", 30, seed=0, stopping=()).text[0].startswith(CYCLE + CYCLE)


def test_of_a_stop_string_that_began_in_the_prompt_the_text_keeps_what_was_drawn():
    task = cycling(sampling=GREEDY, stopping=(stop_strings(ByteTokenizer(), "🙂xé"),))
    drawn = task("é🙂", 30, seed=0)
    assert drawn.terminated.tolist() == [True]
    assert drawn.text == ("xé",)
    assert "".join(task.stream("é🙂", 30, seed=0)) == "xé"


@pytest.mark.parametrize("string", ["🙂x", "x", "é🙂xé", "\n", CYCLE * 3, "x" + CYCLE * 2 + "é"])
def test_a_stream_never_shows_a_stop_string(string):
    task = cycling(sampling=GREEDY, stopping=(stop_strings(ByteTokenizer(), string),))
    pieces = list(task.stream("x", 45, seed=0))
    assert "".join(pieces) == task("x", 45, seed=0).text[0]
    assert string not in "".join(pieces)


def test_a_search_is_no_stream():
    with pytest.raises(ValueError, match="call the task"):
        cycling(strategy=Beam(2)).stream("x", 4, seed=0)
