"""Images as rows of patches.

Dimensions: B images, H by W pixels of C channels, P the side of a patch, N = (H / P) (W / P) patches.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def patchify(images: Float[Array, "B H W C"], patch: int) -> Float[Array, "B N F"]:
    """Cut images into patches, row by row, and flatten each to F = P P C numbers.

    Raises:
        ValueError: a side that `patch` does not divide.
    """
    rows, height, width, channels = images.shape
    if height % patch or width % patch:
        raise ValueError(f"patch_size={patch} must divide both sides of a {height}x{width} image")
    cut = images.reshape(rows, height // patch, patch, width // patch, patch, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(rows, -1, patch * patch * channels)


def gather_tokens(features: Float[Array, "B N D"], indices: Int[Array, "B ..."]) -> Float[Array, "B ... D"]:
    """The features at `indices` of the same image."""
    flat = indices.reshape(indices.shape[0], -1)
    taken = jnp.take_along_axis(features, flat[..., None], axis=1)
    return taken.reshape(*indices.shape, features.shape[-1])
