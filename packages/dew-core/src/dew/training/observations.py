"""What microbatches observe for their commit: effects, which add up, and the largest attention logits.

Nothing here acts on a state. A window merges the observations of the microbatches it accepts, and the commit
applies them once.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.objectives.base import Aux
from dew.training.microbatch import added, pack
from dew.training.state import Accumulation
from dew.training.widths import widened

MAXIMA, STILL = "max_logits", "qk_nope"
"""What an attention layer reports: a one-tuple of [rows, heads], and latent attention a width."""


def empty_observations(aux: Aux[Any]) -> Accumulation:
    """The observations of a window without microbatches.

    Logits start from zero, below which none matters to QK-Clip.

    Args:
        aux: the shapes of a loss's reports.
    """

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

    logits = jax.eval_shape(head_maxima, aux.qk_stats)
    return {"effects": pack(widened(zeros(aux.effects))), "logits": pack(zeros(logits))}


def observed(held: Accumulation, aux: Aux[Any]) -> Accumulation:
    """The observations of `held` and of one more microbatch."""
    logits = jax.tree.map(jnp.maximum, held["logits"], pack(head_maxima(aux.qk_stats)))
    return {"effects": added(held["effects"], pack(aux.effects)), "logits": logits}


def head_maxima(qk_stats: Any) -> Any:
    """The largest logit of every head over the rows of a batch, nested as `Aux.qk_stats`; None for None.

    A `qk_nope` stays.

    Raises:
        ValueError: an attention layer that reports something else than `max_logits` and `qk_nope`.
    """
    if qk_stats is None:
        return None
    flat = cast("dict[tuple[str, ...], Any]", flatten_dict(cast("dict[str, Any]", qk_stats)))
    for path in flat:
        if path[-1] not in (MAXIMA, STILL):
            raise ValueError(
                f"qk_stats reports {path[-1]!r} of {'/'.join(path[:-1])}; QK-Clip reads {MAXIMA!r} and "
                f"{STILL!r} of attention with query and key kernels of its own, so use optim.optimizer='muon'"
            )
    return unflatten_dict(
        {
            path: jnp.max(leaf[0], axis=0) if path[-1] == MAXIMA else jnp.asarray(leaf, jnp.int32)
            for path, leaf in flat.items()
        }
    )
