"""The law of speculative sampling (arXiv 2211.17192, algorithm 1).

With p the target's distribution and q the draft's, both after the chain of transforms, a proposal x drawn
from q is accepted with probability `min(1, p(x) / q(x))`, and a rejected one is replaced by a draw from the
normalized positive part of `p - q`. Either way the token is distributed as p.

Dimensions: B rows, D proposals, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def acceptance(
    target: Float[Array, "... V"], draft: Float[Array, "... V"], proposed: Int[Array, "..."]
) -> Float[Array, "..."]:
    """`min(1, p(x) / q(x))` of proposals, from log probabilities."""

    def of(log_probs: jax.Array) -> jax.Array:
        return jnp.take_along_axis(log_probs, proposed[..., None], axis=-1)[..., 0]

    # A proposal was drawn from q, so q(x) > 0; one that p forbids has ratio 0.
    return jnp.exp(jnp.minimum(of(target) - of(draft), 0.0))


def residual(target: Float[Array, "... V"], draft: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Log of the normalized positive part of `p - q`, from log probabilities.

    Where nothing is left, which rounding alone can make a rejection meet, it is p.
    """
    left = jnp.maximum(jnp.exp(target) - jnp.exp(draft), 0.0)
    mass = jnp.sum(left, axis=-1, keepdims=True)
    return jnp.where(mass > 0, jnp.log(left) - jnp.log(jnp.where(mass > 0, mass, 1.0)), target)


def accepted_prefix(
    chances: Float[Array, "B D"], offered: Bool[Array, "B D"], uniforms: Float[Array, "B D"]
) -> Int[Array, " B"]:
    """How many proposals in a row are kept, each with its chance; one that was not offered ends the run.

    Args:
        chances: of acceptance.
        offered: whether there is such a proposal.
        uniforms: in [0, 1), one for each.
    """
    kept = offered & (uniforms < chances)
    return jnp.sum(jnp.cumprod(kept.astype(jnp.int32), axis=1), axis=1)
