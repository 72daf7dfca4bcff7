"""The independent uses of a step's key."""

from __future__ import annotations

import jax

STREAMS = {"time": 0, "noise": 1, "drop": 2, "dropout": 3, "start": 4, "solver": 5}
"""What a key is used for, and the number folded into it."""


def stream(key: jax.Array, use: str) -> jax.Array:
    """The key of one use of `key`."""
    return jax.random.fold_in(key, STREAMS[use])
