"""Attention in chunks: a query sees the keys of its own chunk alone, up to itself (Llama 4).

Position p of a document is in its chunk `p // size`. Chunks are to attention what documents of a row are, so
every kernel that keeps documents apart keeps them apart too; and since no key of a chunk is `size` or more
positions back, a kernel may skip what a window of `size` skips.

Dimensions: B rows, T tokens.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int


def chunk_ids(
    positions: Int[Array, "B T"], size: int, segment_ids: Int[Array, "B T"] | None = None
) -> Int[Array, "B T"]:
    """A number for each chunk of each document of a row; tokens see those of their own number.

    Args:
        positions: of the tokens in their documents, [B, T] or [1, T]; not negative.
        size: positions in a chunk.
        segment_ids: the document of each token; None where a row is one document.

    Returns:
        [B, T]; [1, T] where no argument tells rows apart.
    """
    chunks = positions // size
    if segment_ids is None:
        return chunks
    return segment_ids * (1 + jnp.max(chunks, axis=-1, keepdims=True)) + chunks
