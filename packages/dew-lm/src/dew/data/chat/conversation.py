"""A conversation as data gives it: messages with a role, and the tools the assistant may call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from dew.data.chat.roles import SPELLINGS, Role
from dew.data.chat.template import CLOSE, OPEN, Message


@dataclass(frozen=True)
class Conversation:
    """Messages in order.

    Attributes:
        messages: each with `role` and `content`, and what else the template reads (`tool_calls`,
            `reasoning_content`, `name`).
        tools: JSON schemas of functions, or None.
        place: where it stands, for messages.
    """

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None
    place: str

    def roles(self) -> list[Role]:
        """Whose each message is."""
        return [SPELLINGS[message["role"]] for message in self.messages]


def conversation(messages: object, tools: object, place: str) -> Conversation:
    """Check and tidy what a record holds.

    Column stores write every field of every message, empty ones as null: a null field is taken as absent,
    except `content`, which is null where it is absent. Only an assistant that calls tools, or says something
    in another field, may lack it. A text in place of a list is read as JSON.

    Args:
        messages: a list of objects, or its JSON.
        tools: a list, its JSON, or None.
        place: where it stands, for messages.

    Raises:
        ValueError: no list of messages, a message without a role or with one that is not known, or with
            content that is no text, no object and no list of objects.
    """
    listed = read_list(messages, place, "messages")
    if not listed:
        raise ValueError(f"{place} holds no message; leave it out")
    called = None if tools is None else read_list(tools, place, "tools")
    found = tuple(_message(each, f"{place}: message {number}") for number, each in enumerate(listed, 1))
    return Conversation(found, tuple(called or ()) or None, place)


def read_list(value: object, place: str, what: str) -> list[Any]:
    """A list, or the text of its JSON, without fields that are null.

    Args:
        value: what a record holds.
        place: where it stands, for messages.
        what: its name, for messages.

    Raises:
        ValueError: something else, or text with a reserved character.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: {what} is a text that is no JSON: {error}") from error
    if not isinstance(value, list):
        raise ValueError(f"{place}: {what} must be a list, not {type(value).__name__}")
    return [_tidied(each, place) for each in cast("list[Any]", value)]


def _message(value: object, place: str) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} must be an object with role and content, not {value!r}")
    fields = cast("Mapping[str, Any]", value)
    role = fields.get("role")
    has = ", ".join(fields) or "nothing"
    if not isinstance(role, str) or role not in SPELLINGS:
        raise ValueError(f"{place}: role={role!r} (it has {has}) must be one of {', '.join(SPELLINGS)}")
    content = fields.get("content")
    if content is None:
        if role != "assistant" or not fields.keys() - {"role", "content", "name"}:
            raise ValueError(
                f"{place} ({role}) has no content (it has {has}); write an empty text, or "
                "leave the message out"
            )
    elif not isinstance(content, str | Mapping) and not _is_parts(content):
        raise ValueError(
            f"{place} ({role}): content={content!r} must be a text, or what the template reads in its place, "
            "an object or a list of objects; write it as text"
        )
    return {"content": None, **fields}


def _is_parts(content: object) -> bool:
    parts = cast("list[object]", content) if isinstance(content, list) else [None]
    return bool(parts) and all(isinstance(each, Mapping) for each in parts)


def _tidied(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: _tidied(each, place) for name, each in fields.items() if each is not None}
    if isinstance(value, list):
        return [_tidied(each, place) for each in cast("list[Any]", value)]
    if isinstance(value, str) and (OPEN in value or CLOSE in value):
        raise ValueError(
            f"{place}: a message holds {OPEN!a} or {CLOSE!a}, reserved characters; leave them out"
        )
    return value
