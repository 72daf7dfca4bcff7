"""How token losses become one number: a total and a mass that add over microbatches and devices.

Dimensions: B rows, S slots; a row is one response, never several packed together. m is the mask, l the loss,
n the number of rows with a trained token: a row without one counts nowhere.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dew.objectives.base import Mean
from dew.rl.names import AggregationName


def aggregate(
    losses: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    *,
    mode: AggregationName = "token_mean",
    budget: int | None = None,
    window_parts: int = 1,
) -> Mean:
    """Sum the losses of the trained tokens by one of five laws.

    | mode | total | mass |
    | --- | --- | --- |
    | `token_mean` | sum m l | sum m |
    | `token_sum` | sum m l | 1 for each optimizer window |
    | `seq_mean_token_mean` | sum over rows of (sum m l / sum m) | n |
    | `seq_mean_token_sum` | sum m l | n |
    | `seq_mean_token_sum_norm` | sum m l | budget n |

    Args:
        losses: of each token; what stands outside the mask is not read.
        mask: the trained slots.
        mode: the law.
        budget: tokens a response may have, the same number throughout a run (Dr.GRPO's length term, not
            the padded width). `seq_mean_token_sum_norm` needs it and the others take none.
        window_parts: microbatches of an optimizer window, so that the parts of `token_sum` have mass 1
            together. The others take 1 alone.

    Raises:
        ValueError: an unknown mode, or a budget or parts that do not belong to it.
    """
    _check(mode, budget, window_parts)
    trained = mask.astype(bool)
    counted = jnp.where(trained, losses, 0).astype(jnp.float32)
    tokens = jnp.sum(trained, -1, dtype=jnp.float32)
    rows = jnp.sum(tokens > 0, dtype=jnp.float32)
    total = jnp.sum(counted)
    match mode:
        case "token_mean":
            return Mean(total, jnp.sum(tokens))
        case "token_sum":
            return Mean(total, jnp.asarray(1 / window_parts, jnp.float32))
        case "seq_mean_token_mean":
            return Mean(jnp.sum(jnp.sum(counted, -1) / jnp.maximum(tokens, 1)), rows)
        case "seq_mean_token_sum":
            return Mean(total, rows)
        case "seq_mean_token_sum_norm":
            assert budget is not None
            return Mean(total, budget * rows)


def _check(mode: str, budget: int | None, window_parts: int) -> None:
    names = AggregationName.__args__
    if mode not in names:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(names)}")
    needs = mode == "seq_mean_token_sum_norm"
    if needs and (budget is None or budget < 1):
        raise ValueError(f"budget={budget}: {mode} divides by the response budget; give it, at least 1")
    if not needs and budget is not None:
        raise ValueError(f"budget={budget} is not read by {mode}; leave it out")
    if window_parts < 1 or (window_parts > 1 and mode != "token_sum"):
        raise ValueError(f"window_parts={window_parts} must be 1 under {mode}; token_sum takes 1 or more")
