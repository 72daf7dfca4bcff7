"""A tokenizer's chat template: from messages to text, with the parts that the template marks as generated.

A template is Jinja, run in the immutable sandbox of Jinja's own; it can neither change what it is given nor
reach beyond it. The environment is the one transformers renders in (blocks trimmed, `tojson` that escapes no
letters, `raise_exception`, `strftime_now`, `{% generation %}`), except that `strftime_now` gives the day a
run names, since rows that change overnight could not be resumed.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""The tag that begins a part as generated."""

PASSED = ("messages", "tools", "documents", "add_generation_prompt")
"""Names that every rendering gives the template."""
FUNCTIONS = ("raise_exception", "strftime_now")
"""What a template may call."""

type Message = Mapping[str, Any]

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Characters that Unicode reserves for a program's own use; they stand where a marked part begins and
ends."""


class ChatTemplateError(ValueError):
    """A template that does not compile, refuses a conversation, or renders it in a way that cannot be
    used."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: without marks.
        generated: first and last + 1 character of each part the template marks as generated.
    """

    text: str
    generated: tuple[tuple[int, int], ...] = ()


class GenerationMarks(Extension):
    """The tag `{% generation %} ... {% endgeneration %}`: its body, between two reserved characters."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read the tag and its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        inner = nodes.Scope(body).set_lineno(line)
        return [_mark(OPEN, line), inner, _mark(CLOSE, line)]


def _mark(character: str, line: int) -> nodes.Node:
    return nodes.Output([nodes.TemplateData(character)]).set_lineno(line)


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja text.
        special_tokens: what the template may name, as `bos_token` and `eos_token`.
        options: further names for it, as `enable_thinking`.
        today: the day that `strftime_now` gives; None refuses a template that asks.

    Attributes:
        names: what the template reads of what it is given.

    Raises:
        ChatTemplateError: it does not compile.
        ValueError: an option of a name that the template is given anyway.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        today: datetime.date | None = None,
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self._names = {**self.special_tokens, **(options or {})}
        environment = _environment(today)
        for name in options or {}:
            if name in (*PASSED, *self.special_tokens, *environment.globals):
                raise ValueError(
                    f"data.template_options: the template is given {name!r} of the conversation or the "
                    "tokenizer; take it out of the options"
                )
        try:
            self._compiled = environment.from_string(source)
            self._parsed = environment.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template does not compile: line {error.lineno}: {error}"
            ) from error
        self.names = frozenset(meta.find_undeclared_variables(self._parsed))

    @property
    def marks(self) -> bool:
        """Whether the template marks what is generated."""
        return TAG.search(self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        """The text of `messages`.

        Args:
            messages: in order.
            tools: JSON schemas of functions that the assistant may call.
            add_generation_prompt: end with the header that asks the assistant to speak.

        Raises:
            ChatTemplateError: the template refuses them, or would leave out calls of tools, or the tools, or
                write a list as Python prints it.
        """
        marked = self._rendered(messages, tools, add_generation_prompt)
        self._require_calls(messages, tools, add_generation_prompt, marked)
        for number, message in enumerate(messages, 1):
            content = message.get("content")
            if content and not isinstance(content, str) and str(content) in marked:
                raise ChatTemplateError(
                    f"message {number} ({message.get('role')}): content={content!r} is no text, and the chat "
                    "template writes it as Python prints it; write it as text, or take a template that reads "
                    "lists"
                )
        return _unmarked(marked)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None, prompt: bool) -> str:
        try:
            return self._compiled.render(
                messages=list(messages),
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=prompt,
                **self._names,
            )
        except jinja2.TemplateError as error:  # the template's own word on these messages
            raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error
        except Exception as error:  # whatever the template's own code raises on these messages
            raise ChatTemplateError(
                f"the chat template refuses the messages: {error}{_without_text(messages)}"
            ) from error

    def _require_calls(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, prompt: bool, marked: str
    ) -> None:
        if tools and "tools" not in self.names:
            raise ChatTemplateError(
                "the chat template never reads tools, and this conversation has some; take a template that "
                "writes them, or leave tools out of the data"
            )
        calling = [number for number, each in enumerate(messages, 1) if each.get("tool_calls")]
        if not calling or _mentions(self._parsed, "tool_calls"):
            return
        without = [{name: each[name] for name in each if name != "tool_calls"} for each in messages]
        if self._rendered(without, tools, prompt) == marked:
            number = calling[0]
            raise ChatTemplateError(
                f"message {number} ({messages[number - 1].get('role')}) has tool_calls, which the chat "
                "template never reads; take a template that writes them, or leave tool_calls out of the data"
            )


def _mentions(parsed: nodes.Template, name: str) -> bool:
    fields = (each.attr == name for each in parsed.find_all(nodes.Getattr))
    return any(fields) or any(each.value == name for each in parsed.find_all(nodes.Const))


def _without_text(messages: Sequence[Message]) -> str:
    """The first message whose content is no text, for the message on a template that stumbles."""
    for number, each in enumerate(messages, 1):
        content = each.get("content")
        if not isinstance(content, str):
            kind = "no content" if content is None else f"a {type(content).__name__} as content"
            return (
                f" (message {number} ({each.get('role')}) has {kind}, and the template may read text alone; "
                "write it as text)"
            )
    return ""


def _environment(today: datetime.date | None) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMarks, loopcontrols]
    )

    def strftime_now(form: str) -> str:
        if today is None:
            raise jinja2.TemplateError("it asks for today's date; set data.today, as in 2026-01-31")
        return today.strftime(form)

    environment.filters["tojson"] = _to_json
    cast("dict[str, Any]", environment.globals).update(raise_exception=_refuse, strftime_now=strftime_now)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _unmarked(marked: str) -> Rendered:
    text: list[str] = []
    spans: list[tuple[int, int]] = []
    at, begun = 0, -1
    for piece in re.split(f"([{OPEN}{CLOSE}])", marked):
        if piece == OPEN:
            if begun >= 0:
                raise ChatTemplateError("the chat template's generation tags stand within each other")
            begun = at
        elif piece == CLOSE:
            spans.append((begun, at))
            begun = -1
        else:
            text.append(piece)
            at += len(piece)
    return Rendered("".join(text), tuple(span for span in spans if span[1] > span[0]))
