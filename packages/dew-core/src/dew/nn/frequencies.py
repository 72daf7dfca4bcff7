"""Rotary frequencies, scaled or not.

Of D turning coordinates, pair i has the frequency `w_i = theta^(-2i/D)` and the wavelength `2 pi / w_i`. With
f the factor and L the original length:

    linear     w_i / f
    dynamic    theta grows to theta (f S / M - f + 1)^(D / (D - 2)) for rows of S over M = L positions
    llama3     w_i for wavelengths below L / high, w_i / f above L / low, and between them the mixture
               (1 - s) w_i / f + s w_i with s = (L / wavelength - low) / (high - low)
    yarn       (1 - r_i) w_i + r_i w_i / f, where r_i rises from 0 to 1 between the pairs that turn beta_fast
               and beta_slow times over L
    longrope   w_i / short_i for rows of up to L positions, w_i / long_i for longer ones

The attention factor, by which cosines and sines are multiplied, is 1 but for yarn, `m(f, a) / m(f, b)` with
`m(f, a) = 0.1 a ln f + 1` for mscale a and mscale_all_dim b (`m(f, 1)` without both), and for longrope,
`sqrt(1 + ln f / ln L)`. Sources: `dew.nn.rotary_scaling`.
"""

from __future__ import annotations

import math
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dew.nn.rotary_scaling import RotaryScaling


def frequencies(
    width: int,
    theta: float,
    scaling: RotaryScaling | None = None,
    lengths: Int[Array, " B"] | int | None = None,
) -> tuple[Float[Array, "B half"], float]:
    """The frequency of every pair in float32, and the attention factor.

    Args:
        width: D, even.
        theta: base of the frequencies.
        scaling: changes them.
        lengths: S of each row, or of all; read by kinds that depend on it.

    Returns:
        [1, D / 2], or [B, D / 2] where rows differ; and the factor.

    Raises:
        ValueError: factors of longrope that are not one a pair.
    """
    exponents = np.arange(0, width, 2) / width
    if scaling is None:
        return jnp.asarray(theta**-exponents, jnp.float32)[None], 1.0
    if scaling.by_length:
        assert lengths is not None, "scaling by length needs the rows' lengths"
        rows = jnp.atleast_1d(jnp.asarray(lengths, jnp.int32))[:, None]
        laws = {"dynamic": _dynamic, "longrope": _longrope}
        return laws[scaling.kind](exponents, theta, scaling, rows), attention_factor(scaling)
    laws = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
    scaled = laws[scaling.kind](exponents, theta, scaling)
    return jnp.asarray(scaled, jnp.float32)[None], attention_factor(scaling)


def attention_factor(scaling: RotaryScaling) -> float:
    """What cosines and sines are multiplied by."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    factor = cast("float", scaling.factor)
    if factor <= 1 or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(cast("int", scaling.original_length)))
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(factor, scaling.mscale) / _mscale(factor, scaling.mscale_all_dim)
    return _mscale(factor, 1.0)


def score_factor(scaling: RotaryScaling | None) -> float:
    """What latent attention multiplies its scores by: `m(f, b)^2` for a yarn with mscale_all_dim b, else 1.

    It stands beside the attention factor and does not depend on it (DeepSeek-V2, arXiv 2405.04434).
    """
    if scaling is None or scaling.factor is None or scaling.factor <= 1 or not scaling.mscale_all_dim:
        return 1.0
    return _mscale(scaling.factor, scaling.mscale_all_dim) ** 2


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


def _linear(exponents: np.ndarray, theta: float, scaling: RotaryScaling) -> np.ndarray:
    return theta**-exponents / cast("float", scaling.factor)


def _llama3(exponents: np.ndarray, theta: float, scaling: RotaryScaling) -> np.ndarray:
    plain = theta**-exponents
    low, high = cast("float", scaling.low_freq_factor), cast("float", scaling.high_freq_factor)
    turns = cast("int", scaling.original_length) * plain / (2 * math.pi)
    # Between equal factors there is no ramp.
    kept = turns >= low if low == high else np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * plain / cast("float", scaling.factor) + kept * plain


def _yarn(exponents: np.ndarray, theta: float, scaling: RotaryScaling) -> np.ndarray:
    plain = theta**-exponents
    width = 2 * len(exponents)
    bounds = [
        width * math.log(cast("int", scaling.original_length) / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.fast, scaling.slow)
    ]
    if scaling.truncate:
        bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
    first, last = max(bounds[0], 0), min(bounds[1], width - 1)
    ramp = np.clip((np.arange(len(exponents)) - first) / (last - first or 0.001), 0.0, 1.0)
    return (1 - ramp) * plain + ramp * plain / cast("float", scaling.factor)


def _dynamic(exponents: np.ndarray, theta: float, scaling: RotaryScaling, rows: jax.Array) -> jax.Array:
    factor, length = cast("float", scaling.factor), cast("int", scaling.original_length)
    width = 2 * len(exponents)
    longest = jnp.maximum(rows, length).astype(jnp.float32)
    base = theta * (factor * longest / length - (factor - 1)) ** (width / (width - 2))
    return base ** -jnp.asarray(exponents, jnp.float32)


def _longrope(exponents: np.ndarray, theta: float, scaling: RotaryScaling, rows: jax.Array) -> jax.Array:
    plain = theta**-exponents
    divided: list[jax.Array] = []
    for name in ("short_factors", "long_factors"):
        factors = cast("tuple[float, ...]", getattr(scaling, name))
        if len(factors) != len(exponents):
            raise ValueError(
                f"rotary scaling {name} holds {len(factors)} numbers for {len(exponents)} turning pairs"
            )
        divided.append(jnp.asarray(plain / np.asarray(factors), jnp.float32))
    return jnp.where(rows > cast("int", scaling.original_length), divided[1], divided[0])
