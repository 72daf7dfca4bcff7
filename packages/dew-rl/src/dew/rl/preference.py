"""Losses over pairs of a chosen and a rejected response, against a frozen reference.

Sigmoid is DPO (arXiv 2305.18290, eq. 7), hinge SLiC (arXiv 2305.10425) in that form, ipo the identity form
(arXiv 2310.12036, eq. 17) over averages. Dimensions: P pairs, B rows, S slots.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from dew.rl.names import PreferenceName


@struct.dataclass
class LogRatios:
    """`log current(y) - log reference(y)` of whole responses.

    Attributes:
        total: [P] summed over the response's trained tokens.
        tokens: [P] how many those are.
    """

    total: jax.Array
    tokens: jax.Array

    @property
    def average(self) -> jax.Array:
        """The sum over its own tokens' count; 0 for a response without any."""
        return self.total / jnp.maximum(self.tokens, 1)


def response_log_ratios(
    current: Float[Array, "P S"], reference: Float[Array, "P S"], mask: Bool[Array, "P S"]
) -> LogRatios:
    """Sum and count under one mask, which holds the end token exactly where it was part of the response.

    Args:
        current: log probabilities of the tokens under the parameters being differentiated.
        reference: under the frozen policy; no gradient flows into it.
        mask: the response's slots; what stands elsewhere is not read.
    """
    read = mask.astype(bool)
    fixed = jax.lax.stop_gradient(jnp.where(read, reference, 0).astype(jnp.float32))
    differences = jnp.where(read, current, 0).astype(jnp.float32) - fixed
    return LogRatios(jnp.sum(differences, -1), jnp.sum(read, -1, dtype=jnp.float32))


def preference_losses(
    chosen: LogRatios, rejected: LogRatios, *, loss: PreferenceName = "sigmoid", beta: float = 0.1
) -> Float[Array, " P"]:
    """The loss of each pair; D is the difference of the log ratios, chosen less rejected.

    | loss | law | log ratios |
    | --- | --- | --- |
    | `sigmoid` | -log sigmoid(beta D) | sums |
    | `hinge` | max(0, 1 - beta D) | sums |
    | `ipo` | (D - 1 / (2 beta))^2 | averages |

    Args:
        chosen: of the preferred responses.
        rejected: of the others.
        loss: the law.
        beta: strength of the pull towards the reference, positive.

    Raises:
        ValueError: an unknown loss, or a beta that is not positive.

    Example:
        >>> row = lambda total, tokens: LogRatios(jnp.asarray([total]), jnp.asarray([tokens]))
        >>> preference_losses(row(2.0, 4.0), row(-1.0, 2.0), loss="ipo").tolist()
        [16.0]
    """
    check_law(loss, beta)
    margins = beta * (chosen.total - rejected.total)
    match loss:
        case "sigmoid":
            return -jax.nn.log_sigmoid(margins)
        case "hinge":
            return jnp.where(margins < 1, 1 - margins, 0)
        case "ipo":
            return jnp.square(chosen.average - rejected.average - 1 / (2 * beta))


def check_law(loss: str, beta: float) -> None:
    """Refuse what `preference_losses` does not compute.

    Raises:
        ValueError: an unknown loss, or a beta that is not positive and finite.
    """
    if loss not in PreferenceName.__args__:
        raise ValueError(f"loss={loss!r} must be one of {', '.join(PreferenceName.__args__)}")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta={beta} must be positive and finite")
