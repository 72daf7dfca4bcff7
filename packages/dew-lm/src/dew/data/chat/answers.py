"""Prompts, and pairs of answers to one prompt, as texts with the answer's characters told apart.

A prompt is a text or a list of messages, and an answer what the prompt is. Of messages the prompt ends with
the header that asks the assistant to speak. A text's answer ends with the tokenizer's end of text, where it
has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dew.data.chat.beginnings import shared_length
from dew.data.chat.choose import special_tokens
from dew.data.chat.conversation import conversation
from dew.data.chat.reading import Record
from dew.data.chat.roles import Role
from dew.data.chat.store import TOOLS, RecordSource
from dew.data.chat.template import ChatTemplateError
from dew.data.chat.turns import RewrittenTurns, Spoken

PROMPT = "prompt"
"""The column of a pair's prompt where none is named."""


@dataclass(frozen=True, kw_only=True)
class PromptSource(RecordSource):
    """Prompts.

    Attributes:
        column: of the prompt.
    """

    column: str

    @property
    def columns(self) -> Mapping[str, str]:
        return {"data.column": self.column}

    def rendered(self, record: Record, place: str) -> list[Spoken]:
        prompt = asked(self, record[self.column], record.get(TOOLS), place)
        return [Spoken(prompt, np.full(len(prompt), Role.TEMPLATE, np.uint8))]


@dataclass(frozen=True, kw_only=True)
class PairSource(RecordSource):
    """Two answers to a prompt: texts `2 i` and `2 i + 1` are the preferred one of pair `i` and the other.

    Of a record without a prompt the answers are whole conversations, and the prompt is the messages they
    begin with alike.

    Attributes:
        prompt: column of the prompt, which every record must have; None takes `prompt` of those that have it.
        chosen: column of the preferred answer.
        rejected: column of the other.
    """

    prompt: str | None
    chosen: str
    rejected: str

    @property
    def columns(self) -> Mapping[str, str]:
        answers = {"data.chosen": self.chosen, "data.rejected": self.rejected}
        return answers if self.prompt is None else {"data.prompt": self.prompt, **answers}

    def rendered(self, record: Record, place: str) -> list[Spoken]:
        chosen, rejected = record[self.chosen], record[self.rejected]
        prompt = record.get(PROMPT if self.prompt is None else self.prompt)
        if prompt is None and self.prompt is not None:
            raise ValueError(f"{place} has no prompt in {self.prompt!r} (null); leave it out, or data.prompt")
        if prompt is None:
            prompt, chosen, rejected = _parted(chosen, rejected, place)
        tools = record.get(TOOLS)
        before = asked(self, prompt, tools, place)
        if not (before and chosen and rejected):
            raise ValueError(f"{place} has an empty prompt or answer; leave it out")
        return [self._answered(before, prompt, answer, tools, place) for answer in (chosen, rejected)]

    def _answered(self, before: str, prompt: object, answer: object, tools: object, place: str) -> Spoken:
        if isinstance(prompt, str) and isinstance(answer, str):
            whole = before + answer + special_tokens(self.tokenizer).get("eos_token", "")
        elif isinstance(prompt, list) and isinstance(answer, list):
            messages = [*cast("list[Any]", prompt), *cast("list[Any]", answer)]
            whole = _rendered(self, messages, tools, place, add_generation_prompt=False)
        else:
            raise ValueError(
                f"{place}: the prompt is a {type(prompt).__name__} and an answer a "
                f"{type(answer).__name__}; both "
                "must be texts or both lists of messages"
            )
        if not whole.startswith(before):
            at = shared_length(before, whole)
            raise RewrittenTurns(
                f"{place}: the chat template asks with {before[at:][:24]!r} and writes "
                f"{whole[at:][:24]!r} there "
                "once it is answered; take a data.template that keeps the prompt as it asked"
            )
        roles = np.full(len(whole), Role.ASSISTANT, np.uint8)
        roles[: len(before)] = Role.TEMPLATE
        return Spoken(whole, roles)


def asked(source: RecordSource, prompt: object, tools: object, place: str) -> str:
    """A prompt as text, with the header that asks for an answer where it is messages.

    Raises:
        ValueError: neither text nor messages, or messages that the template refuses.
    """
    if isinstance(prompt, str):
        return prompt
    return _rendered(source, prompt, tools, place, add_generation_prompt=True)


def _rendered(
    source: RecordSource, messages: object, tools: object, place: str, *, add_generation_prompt: bool
) -> str:
    talk = conversation(messages, tools, place)
    template = source.template_for(talk.tools)
    try:
        return template.render(
            talk.messages, tools=talk.tools, add_generation_prompt=add_generation_prompt
        ).text
    except ChatTemplateError as error:
        raise ChatTemplateError(f"{place}: {error}") from error


def _parted(chosen: object, rejected: object, place: str) -> tuple[list[Any], list[Any], list[Any]]:
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise ValueError(
            f"{place} has no prompt, so its answers must be whole conversations, lists of messages"
        )
    ours, others = cast("list[Any]", chosen), cast("list[Any]", rejected)
    shared = shared_length(ours, others)
    if not 0 < shared < min(len(ours), len(others)):
        raise ValueError(f"{place}: the two conversations must begin alike and then differ")
    return ours[:shared], ours[shared:], others[shared:]
