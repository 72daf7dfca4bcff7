"""How a published tensor holds the leaves of this tree.

A kernel is [in, out] here. Published, it is turned to [out, in], or several of them stand in one tensor. Each
form says the tensor's shape, makes it of its parts, and takes it apart again; parts are kernels or biases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

type Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """A layout of one tensor.

    Attributes:
        name: for messages.
        shape: of the tensor, from the shapes of its parts and the number of query heads.
        join: the tensor, of its parts and the number of query heads.
        split: the parts, of the tensor, their shapes and the number of query heads; views where possible.
    """

    name: str
    shape: Callable[[Sequence[Shape], int], Shape]
    join: Callable[[Sequence[np.ndarray], int], np.ndarray]
    split: Callable[[np.ndarray, Sequence[Shape], int], list[np.ndarray]]


def _kept_shape(shapes: Sequence[Shape], heads: int) -> Shape:
    (shape,) = shapes
    return shape


def _kept(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    (part,) = parts
    return part


def _rows_shape(shapes: Sequence[Shape], heads: int) -> Shape:
    return (sum(shape[-1] for shape in shapes), *shapes[0][:-1])


def _rows(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    return parts[0].T if len(parts) == 1 else np.concatenate([part.T for part in parts], axis=0)


def _rows_apart(value: np.ndarray, shapes: Sequence[Shape], heads: int) -> list[np.ndarray]:
    ends = np.cumsum([shape[-1] for shape in shapes])[:-1]
    return [part.T for part in np.split(value, ends, axis=0)]


def _columns_shape(shapes: Sequence[Shape], heads: int) -> Shape:
    return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))


def _columns(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _columns_apart(value: np.ndarray, shapes: Sequence[Shape], heads: int) -> list[np.ndarray]:
    ends = np.cumsum([shape[-1] for shape in shapes])[:-1]
    return np.split(value, ends, axis=-1)


def _by_head(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    turned = [part.T.reshape(heads, -1, *part.shape[:-1]) for part in parts]
    return np.stack(turned, axis=1).reshape(-1, *parts[0].shape[:-1])


def _by_head_apart(value: np.ndarray, shapes: Sequence[Shape], heads: int) -> list[np.ndarray]:
    grouped = value.reshape(heads, len(shapes), -1, *value.shape[1:])
    return [grouped[:, index].reshape(-1, *value.shape[1:]).T for index in range(len(shapes))]


def _stacked_shape(shapes: Sequence[Shape], heads: int) -> Shape:
    experts, inputs, _ = shapes[0]
    return (experts, sum(shape[-1] for shape in shapes), inputs)


def _stacked(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    turned = [part.swapaxes(1, 2) for part in parts]
    return turned[0] if len(turned) == 1 else np.concatenate(turned, axis=1)


def _stacked_apart(value: np.ndarray, shapes: Sequence[Shape], heads: int) -> list[np.ndarray]:
    ends = np.cumsum([shape[-1] for shape in shapes])[:-1]
    return [part.swapaxes(1, 2) for part in np.split(value, ends, axis=1)]


def _interleaved(parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
    return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)


def _interleaved_apart(value: np.ndarray, shapes: Sequence[Shape], heads: int) -> list[np.ndarray]:
    return [value[..., index :: len(shapes)] for index in range(len(shapes))]


KEPT = Form("kept", _kept_shape, _kept, lambda value, shapes, heads: [value])
"""The leaf as it is: a table of vectors, a norm's scale."""
ROWS = Form("rows", _rows_shape, _rows, _rows_apart)
"""Turned kernels, one below the other: the layout of a linear layer in torch, fused or not."""
COLUMNS = Form("columns", _columns_shape, _columns, _columns_apart)
"""Kernels as they are, side by side: GPT-2's `Conv1D`."""
BY_HEAD = Form("by head", _rows_shape, _by_head, _by_head_apart)
"""Turned kernels interleaved head by head: GPT-NeoX's `query_key_value`."""
STACKED = Form("stacked", _stacked_shape, _stacked, _stacked_apart)
"""Every expert's turned kernels, one below the other: the experts of a layer in one tensor."""
INTERLEAVED = Form("interleaved", _columns_shape, _interleaved, _interleaved_apart)
"""Columns of several kernels or biases in turn: GPT-OSS's gate and up projections."""
