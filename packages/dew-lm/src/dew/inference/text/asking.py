"""Prompts as a user writes them: texts, messages, or files of them. Importing it imports no JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dew.inference.text.processor import ChatProcessor


@dataclass(frozen=True)
class Asked:
    """One prompt.

    Attributes:
        text: what is continued, or None for a conversation.
        request: what the user wrote, for the record of the response.
        messages: of a conversation.
        tools: JSON schemas of functions, or None.
        place: where it stands in a file.
    """

    text: str | None
    request: Any
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Any, ...] | None = None
    place: str = ""

    def ids(self, processor: ChatProcessor) -> list[int]:
        """The prompt's ids.

        Raises:
            ValueError: text or messages that the tokenizer cannot read; the message names the place.
        """
        try:
            if self.text is not None:
                return processor.encode(self.text)
            return processor.chat(self.messages, tools=self.tools)
        except ValueError as error:
            if not self.place:
                raise
            raise ValueError(f"{self.place}: {error}") from error


def as_messages(asked: Asked) -> Asked:
    """A text as a user's message; a conversation as it is."""
    if asked.text is None:
        return asked
    message = {"role": "user", "content": asked.text}
    return Asked(None, asked.request, messages=(message,), place=asked.place)


def file_prompts(path: str) -> list[Asked]:
    """The prompts in a file: `.jsonl` and `.json` hold records, any other file a prompt on each line.

    A record is a text, an object with `prompt`, or an object with `messages` and perhaps `tools`. What else
    an object holds is kept with its response. A `.json` file holds a list of records, or the messages of one
    conversation. A byte-order mark at the beginning is no part of a prompt.

    Raises:
        ValueError: a file without prompts or not in UTF-8, or a line or record that is no prompt, by its
            place.
        OSError: the file cannot be read.
    """
    file = Path(path).expanduser()
    found = _prompts_in(file, path)
    if not found:
        raise ValueError(f"prompts={path} holds no prompt; write one on each line, or records as .jsonl")
    return found


def _prompts_in(file: Path, path: str) -> list[Asked]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"prompts={path} is not UTF-8 at byte {error.start}; write it in UTF-8") from error
    if file.suffix == ".json":
        return _of_list(_parsed(text, path), path)
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(text.splitlines(), start=1)]
    if file.suffix == ".jsonl":
        return [_of_record(_parsed(line, place), place) for place, line in lines if line.strip()]
    for place, line in lines:
        if not line.strip():
            raise ValueError(f"{place} holds no prompt; take it out, or write the prompts as .jsonl")
    return [Asked(line, line, place=place) for place, line in lines]


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from error


def _of_list(found: Any, path: str) -> list[Asked]:
    if not isinstance(found, list):
        raise ValueError(f"{path} holds no list; a .json file holds a list of prompts, or of messages")
    records = cast("list[Any]", found)
    if records and all(isinstance(each, Mapping) and "role" in each for each in records):
        return [_of_record({"messages": records}, path)]
    return [_of_record(each, f"{path}, entry {number}") for number, each in enumerate(records, start=1)]


def _of_record(record: Any, place: str) -> Asked:
    if isinstance(record, str):
        return Asked(record, record, place=place)
    if isinstance(record, Mapping):
        fields = cast("Mapping[str, Any]", record)
        prompt, messages, tools = (fields.get(name) for name in ("prompt", "messages", "tools"))
        if prompt is not None and messages is not None:
            raise ValueError(f"{place} has both prompt and messages; keep one, or make two records of it")
        if isinstance(prompt, str) and messages is None and tools is None:
            return Asked(prompt, record, place=place)
        if isinstance(messages, list) and prompt is None and isinstance(tools, list | None):
            called = None if tools is None else tuple(cast("list[Any]", tools))
            return Asked(None, record, tuple(cast("list[Any]", messages)), called, place)
    raise ValueError(
        f"{place} is no prompt: it must be a text, an object with a text as prompt, or one with a list as "
        "messages (and a list as tools)"
    )
