"""Token ids as the configuration of a transform or a criterion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

type Ids = int | Iterable[int] | np.ndarray | jax.Array
"""One id, several, or an integer array of them."""


def id_array(name: str, ids: Any) -> Any:
    """`ids` as an int32 array `[count]`; a leaf that stands for an array inside a transformation is kept.

    Raises:
        TypeError: something else than integers.
        ValueError: a negative id.
    """
    if isinstance(ids, jax.Array) or not isinstance(ids, int | np.integer | Iterable):
        return ids
    found = np.asarray(ids if isinstance(ids, int | np.integer | np.ndarray) else list(ids))
    if found.size and (found.dtype == bool or not np.issubdtype(found.dtype, np.integer)):
        raise TypeError(f"{name} holds {found.dtype} values; token ids are integers")
    if (found < 0).any():
        raise ValueError(f"{name} holds the id {int(found.min())}; token ids are 0 or above")
    return found.astype(np.int32).reshape(-1)


def one_id(name: str, value: Any) -> Any:
    """`value` where it is one id or stands for one.

    Raises:
        TypeError: another number, or several.
        ValueError: a negative id.
    """
    if isinstance(value, bool | float | str | list | tuple):
        raise TypeError(f"{name}={value!r} must be one token id")
    if isinstance(value, int | np.integer) and value < 0:
        raise ValueError(f"{name}={value} must be a token id, 0 or above")
    return value


def token_count(name: str, value: Any, *, least: int = 0) -> Any:
    """`value` where it is a number of tokens or stands for one.

    Raises:
        TypeError: no integer.
        ValueError: below `least`.
    """
    if isinstance(value, bool | float | str):
        raise TypeError(f"{name}={value!r} must be an integer number of tokens")
    if isinstance(value, int | np.integer) and value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return value


def within(name: str, ids: Any, vocab_size: int) -> None:
    """Refuse ids that the model does not have.

    Raises:
        ValueError: naming what holds them.
    """
    found = np.asarray(ids)
    wrong = found[found >= vocab_size]
    if wrong.size:
        raise ValueError(f"{name} names the id {int(wrong[0])}; the model's ids are 0 to {vocab_size - 1}")
