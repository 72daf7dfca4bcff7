"""Rotary position embedding (RoFormer, arXiv 2104.09864), in the half-split layout of Llama checkpoints.

Coordinate i of the first half is paired with coordinate i of the second half; at position p
the pair turns by `p * theta^(-2i/D)`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rotary_table(
    positions: Int[Array, "B T"], width: int, theta: float
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Return the cosines and sines of every position's angles, in float32.

    Args:
        positions: [B, T] or [1, T].
        width: of a head, even.
        theta: base of the frequencies.

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"head_dim={width} must be even: rotary positions turn pairs of coordinates")
    exponents = jnp.arange(0, width, 2, dtype=jnp.float32) / width
    angles = positions[..., None].astype(jnp.float32) * theta**-exponents
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "B T H D"], cosines: Float[Array, "B T half"], sines: Float[Array, "B T half"]
) -> Float[Array, "B T H D"]:
    """Return `x` turned by the angles of `rotary_table`, computed in float32, in the dtype of `x`."""
    first, second = jnp.split(x.astype(jnp.promote_types(x.dtype, jnp.float32)), 2, axis=-1)
    cosines, sines = cosines[:, :, None], sines[:, :, None]
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
