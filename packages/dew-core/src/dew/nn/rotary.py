"""Rotary position embedding (RoFormer, arXiv 2104.09864).

At position p a pair of coordinates turns by `p w_i`, with the frequencies of `dew.nn.frequencies`. Pair i of
the turning coordinates is coordinate i of their first half and of their second (`halves`, the layout of Llama
checkpoints), or the coordinates 2i and 2i + 1 (`neighbours`, the paper's own). What lies behind them stays.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.nn.frequencies import frequencies
from dew.nn.rotary_scaling import RotaryScaling

type Pairs = Literal["halves", "neighbours"]


def rotary_table(
    positions: Int[Array, "B T"],
    width: int,
    theta: float,
    *,
    scaling: RotaryScaling | None = None,
    longest: int | None = None,
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Return the cosines and sines of every position's angles, in float32.

    Args:
        positions: [B, T] or [1, T].
        width: of what turns of a head, even.
        theta: base of the frequencies.
        scaling: changes the frequencies.
        longest: positions of a row, for scaling that depends on them; None counts to each row's last one.

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"head_dim={width} must be even: rotary positions turn pairs of coordinates")
    lengths = jnp.max(positions, axis=-1) + 1 if longest is None else longest
    turns, factor = frequencies(width, theta, scaling, lengths)
    angles = positions[..., None].astype(jnp.float32) * turns[:, None, :]
    if factor == 1.0:
        return jnp.cos(angles), jnp.sin(angles)
    return factor * jnp.cos(angles), factor * jnp.sin(angles)


def rotate(
    x: Float[Array, "B T H D"],
    cosines: Float[Array, "B T half"],
    sines: Float[Array, "B T half"],
    pairs: Pairs = "halves",
) -> Float[Array, "B T H D"]:
    """Return `x` turned by the angles of `rotary_table`, computed in float32, in the dtype of `x`."""
    half = cosines.shape[-1]
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    turning, still = wide[..., : 2 * half], wide[..., 2 * half :]
    cosines, sines = cosines[:, :, None], sines[:, :, None]
    if pairs == "neighbours":
        first, second = turning[..., ::2], turning[..., 1::2]
    else:
        first, second = jnp.split(turning, 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    if pairs == "neighbours":
        whole = jnp.stack(turned, axis=-1).reshape(turning.shape)
        parts: list[jax.Array] = [whole]
    else:
        parts = turned
    return jnp.concatenate([*parts, still], axis=-1).astype(x.dtype)
