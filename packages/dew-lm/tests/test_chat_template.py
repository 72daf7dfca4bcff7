"""Conversations as TRL prepares them: ids and assistant masks, with and without generation tags; and
roles."""

import importlib.util
import json
import re
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from dew.data.chat import ChatTemplate, ChatTemplateError, RewrittenTurns, Role, chat_template
from dew.data.chat.conversation import conversation
from dew.data.chat.encode import RoleEncoder, token_roles
from dew.data.chat.turns import Spoken, spoken
from dew.data.text import ByteTokenizer, HFTokenizer

CHAT = Path(__file__).with_name("golden") / "chat"
TALKS = json.loads((CHAT / "conversations.json").read_text())
GOLDEN = json.loads((CHAT / "trl.json").read_text())["rows"]
OPTIONS = {"reasoning": {"keep_reasoning": True}}
CASES = [
    (t, style, talk) for t, styles in GOLDEN.items() for style, talks in styles.items() for talk in talks
]
UNTAGGED = re.compile(r"\{%-? *(end)?generation *-?%\}")


@cache
def tokenizer(name):
    return HFTokenizer(CHAT / name)


def said(name):
    return conversation(TALKS[name]["messages"], TALKS[name].get("tools"), f"conversation {name}")


PHI = [
    ("system", "Be brief."),
    ("user", "Hi"),
    ("assistant", "Hello."),
    ("user", "Bye"),
    ("assistant", "Ciao."),
]


def by_role(text):
    """The stretches of one role, in order."""
    found = groupby(zip(text.text, text.roles, strict=True), key=lambda pair: Role(int(pair[1])).name)
    return [(role, "".join(character for character, _ in held)) for role, held in found]


def template(style, tags=True, options=None, tokens=None):
    source = (CHAT / f"{style}.jinja").read_text()
    source = source if tags else UNTAGGED.sub("", source)
    tokens = {"bos_token": "<s>", "eos_token": "</s>"} if tokens is None else tokens
    return ChatTemplate(source, tokens, options=OPTIONS.get(style) if options is None else options)


def rows(name, style, talk, tags=True, **options):
    texts = spoken(template(style, tags), said(talk), **options)
    return RoleEncoder(tokenizer(name), "<s>").rows(texts)


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize(("name", "style", "talk"), CASES)
def test_ids_and_assistant_tokens_are_those_of_trl(name, style, talk, tags):
    expected = GOLDEN[name][style][talk]
    if talk == "calls" and style in ("headers", "model_turns"):  # TRL leaves the calls out without a word
        with pytest.raises(ChatTemplateError, match="the chat template never reads tools"):
            rows(name, style, talk, tags)
        return
    if "refused" in expected:
        with pytest.raises(ChatTemplateError, match=re.escape(expected["refused"])):
            rows(name, style, talk, tags)
        return
    (row,) = rows(name, style, talk, tags)
    assert row.ids.tolist() == expected["ids"]
    assert (row.roles == Role.ASSISTANT).astype(int).tolist() == expected["mask"]


def shown(name, style, talk, **options):
    """The text of each role, in order."""
    (row,) = rows(name, style, talk, **options)
    backend = tokenizer(name).backend
    cuts = [0, *(np.flatnonzero(np.diff(row.roles)) + 1).tolist(), len(row.ids)]
    return [
        (Role(row.roles[a]).name, backend.decode(row.ids[a:b].tolist(), skip_special_tokens=False))
        for a, b in pairwise(cuts)
    ]


def test_every_token_is_its_writers():
    assert shown("byte_level", "headers", "system", tags=False) == [
        ("TEMPLATE", "<s>"),
        ("SYSTEM", "<|start|>system<|end|>\n\nBe brief.<|eot|>"),
        ("USER", "<|start|>user<|end|>\n\nWho are you?<|eot|>"),
        ("TEMPLATE", "<|start|>assistant<|end|>\n\n"),
        ("ASSISTANT", "A model.<|eot|>"),
    ]


def test_calls_are_the_assistants_and_their_results_the_tools():
    roles = shown("byte_level", "chatml", "calls")
    assert [role for role, _ in roles] == [
        *("USER", "TEMPLATE", "ASSISTANT", "TOOL", "TEMPLATE", "ASSISTANT"),
    ]
    assert '<call>add {"a": 1, "b": 2}</call>' in roles[2][1] and roles[2][1].endswith("<|im_end|>\n")
    assert roles[3][1].endswith("<result>3</result>\n<result>7</result><|im_end|>\n")


def test_a_system_message_that_the_template_sets_into_the_users_is_the_users():
    assert shown("byte_level", "model_turns", "system", tags=False)[:2] == [
        ("TEMPLATE", "<s>"),
        ("USER", "<start_of_turn>user\nBe brief.\n\nWho are you?<end_of_turn>\n"),
    ]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_beginning_that_the_template_writes_stands_once(name):
    """Although the byte-level tokenizer's own post-processor adds one to plain text."""
    (row,) = rows(name, "headers", "plain")
    bos = tokenizer(name).backend.token_to_id("<s>")
    assert row.ids.tolist().count(bos) == 1 and row.ids[0] == bos
    (row,) = rows(name, "chatml", "plain")
    assert bos not in row.ids


def test_a_beginning_that_stands_twice_is_refused():
    twice = ChatTemplate("{{ bos_token }}" + (CHAT / "headers.jinja").read_text(), {"bos_token": "<s>"})
    with pytest.raises(ValueError, match="begins with its first token twice"):
        RoleEncoder(tokenizer("byte_level"), "<s>").rows(spoken(twice, said("plain")))


STRIPS = {"options": {}}


@pytest.mark.parametrize("tags", [True, False])
def test_a_template_that_strips_earlier_reasoning_is_refused_by_name(tags):
    with pytest.raises(RewrittenTurns, match=r"conversation reasons: .*No small divisor|<think>"):
        spoken(template("reasoning", tags, **STRIPS), said("reasons"))


def test_or_taken_apart_so_that_every_turn_is_learned_once_as_it_was_generated():
    texts = spoken(template("reasoning", tags=False, **STRIPS), said("reasons"), rewritten="split")
    learned = [
        "".join(c for c, role in zip(each.text, each.roles, strict=True) if role == Role.ASSISTANT)
        for each in texts
    ]
    assert learned == [
        "<think>\nNo small divisor.\n</think>\n\nYes.<|im_end|>\n",
        "<think>\nTwo divides it.\n</think>\n\nNo.<|im_end|>\n",
    ]
    before = texts[1].text[: texts[1].text.index("<think>")]
    assert before.endswith("Yes.<|im_end|>\n<|im_start|>user\nAnd 8?<|im_end|>\n<|im_start|>assistant\n")
    assert "divisor" not in before


def test_one_turn_with_reasoning_needs_no_taking_apart():
    (text,) = spoken(template("reasoning", tags=False, **STRIPS), said("plain"))
    assert "<think>" in text.text


def test_results_of_parallel_calls_stand_in_one_frame():
    (text,) = spoken(template("chatml", tags=False), said("calls"))
    whole = template("chatml", tags=False).render(said("calls").messages, tools=said("calls").tools)
    assert text.text == whole.text and len(text.roles) == len(text.text)


def test_a_template_that_answers_otherwise_than_it_asks_is_refused():
    odd = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
                       "{% if add_generation_prompt %}model:{% endif %}")  # fmt: skip
    with pytest.raises(RewrittenTurns, match=r"asks for message 2 with .*model:.* writes it otherwise"):
        spoken(odd, said("plain"))


def test_an_end_of_text_behind_the_last_message_alone_is_no_rewriting():
    """As the templates of Phi-3 and Phi-3.5 write it."""
    talk = conversation(
        [{"role": role, "content": text} for role, text in PHI], None, "a talk in the way of Phi"
    )
    source = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
    )
    (text,) = spoken(ChatTemplate(source, {"eos_token": "</s>"}), talk)
    assert by_role(text) == [
        ("SYSTEM", "<|system|>\nBe brief.<|end|>\n"),
        ("USER", "<|user|>\nHi<|end|>\n"),
        ("TEMPLATE", "<|assistant|>\n"),
        ("ASSISTANT", "Hello.<|end|>\n"),
        ("USER", "<|user|>\nBye<|end|>\n"),
        ("TEMPLATE", "<|assistant|>\n"),
        ("ASSISTANT", "Ciao.<|end|>\n</s>"),
    ]


def test_an_end_of_text_behind_every_answer_stays_its():
    source = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
        "{% endfor %}"
    )
    (text,) = spoken(ChatTemplate(source, {"eos_token": "</s>"}), said("two_turns"))
    assert text.text.count("</s>") == 2
    assert all(text.roles[found.start()] == Role.ASSISTANT for found in re.finditer("</s>", text.text))


def test_tags_that_miss_a_turn_are_refused():
    first = ChatTemplate(
        "{% for m in messages %}{% if loop.index == 2 %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(
        ChatTemplateError, match="marks 1 parts as generated and the assistant speaks 2 times"
    ):
        spoken(first, said("two_turns"))


def test_a_template_can_reach_nothing_beyond_its_messages():
    for source in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages[0].update({'content': 'x'}) %}",
    ):
        with pytest.raises(ChatTemplateError, match="refuses the messages"):
            ChatTemplate(source).render(TALKS["plain"]["messages"])


def test_blocks_are_trimmed_and_json_is_written_as_it_is():
    blocks = "  {% if true %}\n{{ tools[0] | tojson }}\n  {% endif %}\n"
    source = blocks + "{% for i in [1, 2] %}{% break %}{% endfor %}"
    assert ChatTemplate(source).render([], tools=[{"a": "<é>"}]).text == '{"a": "<é>"}\n'


def test_a_date_comes_from_the_run_alone():
    asks = "{{ strftime_now('%d %b %Y') }}"
    with pytest.raises(ChatTemplateError, match=r"asks for today's date; set data\.today"):
        ChatTemplate(asks).render([])
    tok = ByteTokenizer()
    with pytest.raises(ValueError, match=r"data\.today='soon' must be a day"):
        chat_template(tok, file=str(CHAT / "headers.jinja"), today="soon")


@pytest.mark.parametrize(
    ("files", "tools", "expected"),
    [
        ({"chat_template.jinja": "own"}, False, "own"),
        ({"tokenizer_config.json": {"chat_template": "said"}}, True, "said"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "d"}]}}, True, "d"),
        (
            {"tokenizer_config.json": {"chat_template": [
                {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}},
            True,
            "t",
        ),
    ],
)  # fmt: skip
def test_a_tokenizers_own_template_is_found(tmp_path, files, tools, expected):
    (tmp_path / "tokenizer.json").write_text((CHAT / "byte_level" / "tokenizer.json").read_text())
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert chat_template(HFTokenizer(tmp_path), with_tools=tools).source == expected


def test_a_tokenizer_without_a_template_is_refused():
    with pytest.raises(ValueError, match=r"tokenizer 'byte' has no chat template; .*holds one$"):
        chat_template(ByteTokenizer())
    with pytest.raises(ValueError, match=r"or a template file as data\.template$"):
        chat_template(ByteTokenizer(), file_field="data.template")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "holds no message"),
        ("no json", "is a text that is no JSON"),
        ({"role": "user"}, "messages must be a list"),
        ([{"from": "human", "value": "x"}], r"message 1: role=None \(it has from, value\) must be one of"),
        ([{"role": "human", "content": "x"}], "message 1: role='human'"),
        ([{"role": "user", "content": "\ufdd0"}], "reserved characters"),
        (["hello"], "must be an object with role and content"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant"}],
            r"message 2 \(assistant\) has no content",
        ),
        ([{"role": "user", "content": None}], r"message 1 \(user\) has no content"),
        ([{"role": "user", "content": 3}], r"message 1 \(user\): content=3 must be a text"),
        ([{"role": "user", "content": ["a"]}], r"message 1 \(user\): content=\['a'\] must be a text"),
    ],
)
def test_records_that_hold_no_conversation_are_refused_with_their_place(messages, message):
    with pytest.raises(ValueError, match=rf"here.*{message}"):
        conversation(messages, None, "here")


def test_null_fields_are_absent_and_content_is_always_there():
    talk = conversation(
        '[{"role": "assistant", "tool_calls": null, "content": null, "thinking": "a"}]', "[]", "p"
    )
    assert talk.messages == ({"role": "assistant", "content": None, "thinking": "a"},) and talk.tools is None


def test_bytes_of_one_letter_are_one_writers():
    texts = spoken(template("chatml", tags=False), said("two_turns"))
    (row,) = RoleEncoder(ByteTokenizer()).rows(texts)
    spoken_bytes = bytes(row.ids[row.roles == Role.ASSISTANT].astype(np.uint8).tolist())
    assert spoken_bytes.decode() == "\nBlau — naïve 😀<|im_end|>\n red <|im_end|>\n"


def test_a_token_of_two_writers_is_the_assistants_and_one_of_no_letter_its_places():
    characters = np.asarray([2, 2, 3, 3, 4], np.uint8)
    starts, stops = np.asarray([[0, 1], [1, 3], [3, 5], [4, 5], [4, 4], [5, 5]]).T
    assert token_roles(characters, starts, stops).tolist() == [2, 3, 3, 4, 4, 4]


def test_a_space_at_a_turns_end_is_its_writers_although_a_tokenizer_trims_its_offsets():
    text = "red <|im_end|>"
    roles = np.asarray([Role.ASSISTANT] * 4 + [Role.TEMPLATE] * 10, np.uint8)
    (row,) = RoleEncoder(tokenizer("byte_level")).rows([Spoken(text, roles)])
    spoken_ids = row.ids[row.roles == Role.ASSISTANT].tolist()
    assert tokenizer("byte_level").backend.decode(spoken_ids) == "red "


@pytest.mark.oracle
@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_rows_are_what_trl_gives_here(name):
    pytest.importorskip("trl")
    tool = Path(__file__).resolve().parents[3] / "tools" / "make_chat_golden.py"
    maker = importlib.util.module_from_spec(found := importlib.util.spec_from_file_location("maker", tool))
    found.loader.exec_module(maker)
    assert (
        maker.rows(name, tokenizers.Tokenizer.from_file(str(CHAT / name / "tokenizer.json"))) == GOLDEN[name]
    )


CALLING = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "w", "arguments": {}}}]},
]


def test_calls_that_a_template_never_reads_are_refused_and_others_are_not():
    plain = ChatTemplate("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}")
    with pytest.raises(ChatTemplateError, match=r"message 2 \(assistant\) has tool_calls, which the chat"):
        plain.render(CALLING)
    assert "Weather" in plain.render(CALLING[:1]).text
    for source in ("{{ messages | tojson }}", "{% for m in messages %}{{ m['tool_calls'] }}{% endfor %}"):
        assert "arguments" in ChatTemplate(source).render(CALLING).text


def test_tools_that_a_template_never_reads_are_refused():
    with pytest.raises(ChatTemplateError, match="never reads tools"):
        ChatTemplate("{{ messages[0].content }}").render(CALLING[:1], tools=[{"name": "w"}])


def test_parts_that_a_template_prints_as_python_does_or_stumbles_over_are_refused():
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for source, message in (
        ("{{ messages[0].content }}", r"message 1 \(user\): content=.* as Python prints it"),
        ("{{ 'a' + messages[0].content }}", r"message 1 \(user\) has a list as content"),
    ):
        with pytest.raises(ChatTemplateError, match=message):
            ChatTemplate(source).render(parts)
    assert ChatTemplate("{{ messages[0].content[0].text }}").render(parts).text == "Hi"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "eos_token", "raise_exception"])
def test_options_may_not_take_the_place_of_what_a_template_is_given(name):
    with pytest.raises(ValueError, match=rf"data\.template_options: the template is given '{name}'"):
        template("chatml", options={name: []})


def test_options_that_a_template_never_reads_are_refused_with_those_it_reads():
    file = str(CHAT / "reasoning.jinja")
    assert chat_template(ByteTokenizer(), file=file, options={"keep_reasoning": True}).names
    with pytest.raises(
        ValueError, match="never reads 'enable_thinking'; it reads keep_reasoning; take it out"
    ):
        chat_template(ByteTokenizer(), file=file, options={"enable_thinking": False})
