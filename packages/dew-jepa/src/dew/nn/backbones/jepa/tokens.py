"""Some of an image's tokens."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def gather_tokens(features: Float[Array, "B N D"], indices: Int[Array, "B ..."]) -> Float[Array, "B ... D"]:
    """The features at `indices` of the same image."""
    flat = indices.reshape(indices.shape[0], -1)
    taken = jnp.take_along_axis(features, flat[..., None], axis=1)
    return taken.reshape(*indices.shape, features.shape[-1])
