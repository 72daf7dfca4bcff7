"""Estimates of a divergence from the log probabilities of sampled tokens.

With `d = log current - log reference` at a token drawn from the current policy: k1 = d, k2 = d^2 / 2,
k3 = exp(-d) + d - 1 (Schulman, "Approximating KL divergence", 2020). k1 and k3 are unbiased for
KL(current || reference) as values, but differentiated as losses only k2 has that divergence's gradient:
k1's is 0 in expectation and k3's that of KL(reference || current). `k1+` and `k3+` have their own value and
k2's gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from dew.rl.names import KLName
from dew.rl.ratio import clamp_logs


@struct.dataclass
class Divergence:
    """Estimates and how many were out of range.

    Attributes:
        values: [B, S] float32, 0 at slots that are not read.
        clamped: scalar count of read tokens whose log ratio was cut to `dew.rl.ratio.LOG_LIMIT`; there the
            gradient is 0.
    """

    values: jax.Array
    clamped: jax.Array


def kl_estimates(
    current: Float[Array, "B S"],
    reference: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    *,
    estimator: KLName = "k3",
    cap: float | None = None,
) -> Divergence:
    """The divergence of `current` from `reference` at each token, in nats.

    Args:
        current: log probabilities under the parameters being differentiated.
        reference: under the frozen policy, by the same reading; no gradient flows into it.
        mask: the slots that are read.
        estimator: which of the above.
        cap: values are cut to +-cap, with gradient 0 beyond. None is right in training: a cap switches k3
            off just where the policy has strayed furthest.

    Raises:
        ValueError: an unknown estimator, or a cap that is not positive.
    """
    if cap is not None and cap <= 0:
        raise ValueError(f"cap={cap} must be positive; None leaves it out")
    read = mask.astype(bool)
    now = jnp.where(read, current, 0).astype(jnp.float32)
    fixed = jax.lax.stop_gradient(jnp.where(read, reference, 0).astype(jnp.float32))
    logs, outside = clamp_logs(now - fixed)
    values = _estimates(logs, estimator)
    if cap is not None:
        values = jnp.where(jnp.abs(values) > cap, jnp.sign(values) * cap, values)
    return Divergence(values, jnp.sum(outside, dtype=jnp.float32))


def _estimates(logs: jax.Array, estimator: str) -> jax.Array:
    square = jnp.square(logs) / 2
    match estimator:
        case "k1":
            return logs
        case "k2":
            return square
        case "k3":
            return jnp.expm1(-logs) + logs
        case "k1+" | "k3+":
            value = _estimates(logs, estimator[:2])
            return jax.lax.stop_gradient(value - square) + square
        case _:
            raise ValueError(f"estimator={estimator!r} must be k1, k2, k3, k1+ or k3+")
