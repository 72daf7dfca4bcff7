"""A request in any of its forms as decoder inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from dew.data.chat.template import Message
from dew.inference.text.processor import Processor
from dew.nn.inputs import ModelInputs

type Conversation = Sequence[Message] | Mapping[str, Any]
"""Messages in order, or an object with `messages` and, where the assistant may call functions, `tools`."""
type Row = str | Sequence[int] | Conversation
type Request = Row | Sequence[Row] | np.ndarray | jax.Array | ModelInputs


def read_request(request: Request, processor: Processor | None, pad_id: int) -> ModelInputs:
    """The token rows of `request`, left padded to one width.

    A text, one row of ids or one conversation is a request of one row. `ModelInputs` and arrays are passed on
    as they are.

    Raises:
        TypeError: rows of several kinds, or ids that are not integers.
        ValueError: text without a processor, a conversation without a chat template, or an empty request.
    """
    if isinstance(request, ModelInputs):
        return request
    if isinstance(request, (jax.Array, np.ndarray)):
        return ModelInputs(request[None] if request.ndim == 1 else request)
    rows = _rows(request)
    kinds = {_kind(row) for row in rows}
    if len(kinds) > 1:
        raise TypeError(f"the request mixes {' and '.join(sorted(kinds))}; give one kind")
    read: Callable[[Any], list[int]] = {
        "texts": lambda row: _encoded(row, processor),
        "conversations": lambda row: _rendered(row, processor),
        "token rows": _integers,
    }[kinds.pop()]
    return padded([read(row) for row in rows], pad_id)


def padded(rows: Sequence[Sequence[int]], pad_id: int) -> ModelInputs:
    """Rows of unequal length as one batch, padded on the left and masked."""
    width = max(1, *(len(row) for row in rows))
    tokens = np.full((len(rows), width), pad_id, np.int32)
    mask = np.zeros((len(rows), width), bool)
    for index, row in enumerate(rows):
        if len(row):
            tokens[index, width - len(row) :] = row
            mask[index, width - len(row) :] = True
    return ModelInputs(tokens, {"attention_mask": mask})


def _rows(request: object) -> list[Any]:
    """The rows of a request that is no array."""
    if isinstance(request, str | Mapping):
        return [request]
    if not isinstance(request, Sequence):
        raise TypeError(
            f"request={request!r} must be a text, token ids, the messages of a conversation, or several of "
            "one kind"
        )
    rows = list(cast("Sequence[Any]", request))
    if not rows:
        raise ValueError("the request is empty; give a text, token ids, messages, or several of one kind")
    one_row = all(not isinstance(row, str | Mapping) and np.ndim(row) == 0 for row in rows)
    return [rows] if one_row or all(_is_message(row) for row in rows) else rows


def _is_message(row: object) -> bool:
    return isinstance(row, Mapping) and "messages" not in row


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "texts"
    listed = isinstance(row, Sequence) and any(
        isinstance(each, Mapping) for each in cast("Sequence[Any]", row)
    )
    return "conversations" if listed or isinstance(row, Mapping) else "token rows"


def _encoded(text: str, processor: Processor | None) -> list[int]:
    if processor is None:
        raise ValueError(
            f"the task has no processor to read the text {text[:40]!r}; give it one, or give token ids"
        )
    return processor.encode(text)


def _rendered(row: Conversation, processor: Processor | None) -> list[int]:
    read = getattr(processor, "chat", None)
    if read is None:
        raise ValueError(
            "the task has no processor with a chat template to read the messages; give it one, or give token "
            "ids"
        )
    if not isinstance(row, Mapping):
        return read(row)
    extra = sorted(set(row) - {"messages", "tools"})
    if extra or "messages" not in row:
        raise ValueError(
            f"a conversation is an object of messages and tools; this one has {', '.join(row) or 'none'}"
        )
    return read(row["messages"], tools=row.get("tools"))


def _integers(row: object) -> list[int]:
    ids = list(cast("Sequence[object]", row)) if isinstance(row, (Sequence, np.ndarray)) else [row]
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, (int, np.integer)):
            raise TypeError(f"the token row holds {each!r}; token ids are integers")
    return [int(cast("int", each)) for each in ids]
