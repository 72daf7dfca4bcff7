"""What a request of token rows must be, whatever continues them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.sampling.text.config import Sampling


def is_count(value: object) -> bool:
    """Whether `value` is an integer of at least 1, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= 1


def row_keys(key: jax.Array | None, seed: int | None, rows: int, *, first: int = 0) -> jax.Array:
    """The key of each row `[B]`.

    Args:
        key: one key, into which every row folds its global number, or `[B]`.
        seed: in place of a key.
        rows: B, of this process.
        first: the global number of this process's first row.

    Raises:
        ValueError: both or neither of `key` and `seed`, a seed beyond 64 bits, or keys for other rows.
        TypeError: no typed key, or a seed that is no integer.
    """
    if (key is None) == (seed is None):
        raise ValueError("give exactly one of key and seed; seed=n is key=jax.random.key(n)")
    if key is None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed={seed!r} must be an integer")
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed={seed} must fit 64 bits: from {-(2**63)} to {2**63 - 1}")
        key = jax.random.key(seed)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"key has dtype {key.dtype}; make a typed key with jax.random.key")
    if key.ndim == 0:
        numbers = np.arange(first, first + rows, dtype=np.uint32)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    if key.shape != (rows,):
        raise ValueError(f"key has shape {key.shape}; give one key, or one for each of the {rows} rows")
    return key


def check_model(model: Any, sampling: Sampling) -> None:
    """Refuse a model that does not draw left to right, or an end token it does not have.

    Raises:
        ValueError: naming the field.
    """
    if not getattr(model, "causal", True):
        raise ValueError(
            "the model declares causal=False; generate draws left to right and needs a causal one"
        )
    for each in sampling.eos_ids:
        if each >= model.vocab_size:
            raise ValueError(
                f"eos_id={each} is outside the model's ids, 0 to {model.vocab_size - 1}; "
                "no row could end with it"
            )


def check_parts(parts: Iterable[Any], vocab_size: int) -> None:
    """Refuse a transform or criterion that names a token the model does not have.

    Raises:
        ValueError: naming it.
    """
    for part in parts:
        check = getattr(part, "check_vocabulary", None)
        if check is not None:
            check(vocab_size)
