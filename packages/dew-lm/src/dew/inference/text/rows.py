"""A request in any of its forms as decoder inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from dew.inference.text.processor import Processor
from dew.nn.inputs import ModelInputs

type Row = str | Sequence[int]
type Request = Row | Sequence[Row] | np.ndarray | jax.Array | ModelInputs


def read_request(request: Request, processor: Processor | None, pad_id: int) -> ModelInputs:
    """The token rows of `request`, left padded to one width.

    A text or one row of ids is a request of one row. `ModelInputs` and arrays are passed on as they are.

    Raises:
        TypeError: texts mixed with ids, or ids that are not integers.
        ValueError: text without a processor, or an empty request.
    """
    if isinstance(request, ModelInputs):
        return request
    if isinstance(request, (jax.Array, np.ndarray)):
        return ModelInputs(request[None] if request.ndim == 1 else request)
    if isinstance(request, str):
        rows: list[Any] = [request]
    else:
        if not isinstance(cast("object", request), Sequence):
            raise TypeError(f"request={request!r} must be a text, token ids, or several of either")
        rows = list(request)
        if rows and all(not isinstance(row, str) and np.ndim(row) == 0 for row in rows):
            rows = [rows]
    if not rows:
        raise ValueError("the request is empty; give a text, token ids, or several of either")
    texts = [isinstance(row, str) for row in rows]
    if any(texts) and not all(texts):
        raise TypeError("the request mixes texts and token rows; give one kind")
    if all(texts):
        return padded([_encoded(row, processor) for row in rows], pad_id)
    return padded([_integers(row) for row in rows], pad_id)


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


def _encoded(text: str, processor: Processor | None) -> list[int]:
    if processor is None:
        raise ValueError(
            f"the task has no processor to read the text {text[:40]!r}; give it one, or give token ids"
        )
    return processor.encode(text)


def _integers(row: object) -> list[int]:
    ids = list(cast("Sequence[object]", row)) if isinstance(row, (Sequence, np.ndarray)) else [row]
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, (int, np.integer)):
            raise TypeError(f"the token row holds {each!r}; token ids are integers")
    return [int(cast("int", each)) for each in ids]
