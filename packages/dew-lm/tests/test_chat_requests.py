"""Conversations as requests: the tokenizer's own template, rendered as transformers renders it."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.data.text import ByteTokenizer, HFTokenizer
from dew.inference.text import RunProcessor, TextGeneration
from dew.inference.text.processor import SourceProcessor
from dew.inference.text.rows import read_request
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling

CHAT = Path(__file__).parent / "golden" / "chat"
FOLDER = CHAT / "byte_level"
ASKED = [{"role": "user", "content": "Hi, what is 1+1?"}]
LONGER = [
    {"role": "system", "content": "Be brief."},
    *ASKED,
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    """A processor whose folder holds ChatML's template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((FOLDER / name).read_text())
    (folder / "chat_template.jinja").write_text((CHAT / "chatml.jinja").read_text())
    return RunProcessor(HFTokenizer(folder))


def rows_of(inputs):
    """The real ids of each row."""
    mask = np.asarray(inputs.token_fields["attention_mask"])
    return [np.asarray(row)[real].tolist() for row, real in zip(inputs.tokens, mask, strict=True)]


def spelled(ids, processor):
    return processor.tokenizer.backend.decode(ids, skip_special_tokens=False)


def test_messages_are_rendered_up_to_where_the_assistant_speaks(chatting):
    text = spelled(chatting.chat(ASKED), chatting)
    assert text.endswith("<|im_start|>user\nHi, what is 1+1?<|im_end|>\n<|im_start|>assistant\n")


def test_a_conversation_is_a_row_and_several_are_a_batch(chatting):
    one = rows_of(read_request(ASKED, chatting, 0))
    assert one == [chatting.chat(ASKED)]
    assert rows_of(read_request([ASKED, LONGER], chatting, 0)) == [
        chatting.chat(ASKED),
        chatting.chat(LONGER),
    ]
    objects = [{"messages": ASKED}, {"messages": LONGER}]
    assert rows_of(read_request(objects, chatting, 0)) == [chatting.chat(ASKED), chatting.chat(LONGER)]
    assert rows_of(read_request({"messages": ASKED}, chatting, 0)) == one


def test_tools_reach_the_template(chatting):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    ids = rows_of(read_request({"messages": ASKED, "tools": [tool]}, chatting, 0))
    assert '"add"' in spelled(ids[0], chatting)
    assert ids == [chatting.chat(ASKED, tools=[tool])]


def test_a_conversation_with_tools_takes_the_template_for_them(tmp_path):
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools[0].name }}"},
    ]
    config = json.loads((FOLDER / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": templates}))
    (tmp_path / "tokenizer.json").write_text((FOLDER / "tokenizer.json").read_text())
    processor = RunProcessor(HFTokenizer(tmp_path))
    assert processor.decode(processor.chat(ASKED)) == "plain"
    assert processor.decode(processor.chat(ASKED, tools=[{"name": "add"}])) == "with add"


def test_a_task_answers_messages_as_it_continues_their_ids(chatting):
    vocabulary = chatting.tokenizer.vocab_size
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_seq_len": 256}
    model = CausalTransformer(vocab_size=vocabulary, **sizes)
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    task = TextGeneration(model, variables, chatting, sampling=Sampling(temperature=0))
    answer = task(LONGER, 8, seed=0)
    np.testing.assert_array_equal(answer.tokens, task([chatting.chat(LONGER)], 8, seed=0).tokens)
    assert len(answer.text) == 1


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ([{"role": "wizard", "content": "x"}], "wizard"),
        ([{"content": "x"}], "role=None"),
        ({"messages": [], "tools": []}, "no message"),
        ({"message": ASKED}, "messages and tools; this one has message"),
        ([{"messages": ASKED, "n": 3}], "messages, n"),
        ([{"role": "user", "content": "a\udcff"}], "UTF-8"),
    ],
)
def test_what_is_no_conversation_is_refused(chatting, request_, named):
    with pytest.raises(ValueError, match=named):
        read_request(request_, chatting, 0)


def test_a_tokenizer_without_a_template_is_refused_by_name():
    with pytest.raises(ValueError, match="'byte' has no chat template"):
        RunProcessor(ByteTokenizer()).chat(ASKED)


def test_a_sources_text_stands_within_its_special_tokens(tmp_path):
    record = json.loads((FOLDER / "tokenizer.json").read_text())
    special = record["added_tokens"][0]
    record["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": special["content"], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            special["content"]: {
                "id": special["content"],
                "ids": [special["id"]],
                "tokens": [special["content"]],
            }
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    tokenizer = HFTokenizer(tmp_path)
    assert SourceProcessor(tokenizer).encode("ab") == [special["id"], *RunProcessor(tokenizer).encode("ab")]


@pytest.mark.oracle
@pytest.mark.parametrize("template", ["chatml", "headers", "instructions", "model_turns", "reasoning"])
def test_prompt_ids_are_those_of_the_installed_transformers(template, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    (tmp_path / "chat_template.jinja").write_text((CHAT / f"{template}.jinja").read_text())
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    processor = RunProcessor(HFTokenizer(tmp_path))
    turns = LONGER if template in ("chatml", "headers") else LONGER[1:]
    for messages in (ASKED, turns):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert processor.chat(messages) == list(expected)
