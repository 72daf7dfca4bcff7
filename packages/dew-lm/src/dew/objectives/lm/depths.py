"""The loss of prediction depths (DeepSeek-V3, arXiv 2412.19437, equations 24 and 25).

With D depths, `L = (weight / D) sum over k of T_k / M_k`: T_k is the summed cross entropy of depth k and M_k
counts its own targets, those that have k + 1 tokens before them in their document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import struct

from dew.nn.backbones.causal_transformer.depths import present
from dew.objectives.base import Mean, mean_loss
from dew.objectives.lm.routing import LMStatistics

if TYPE_CHECKING:
    from dew.objectives.lm.decoder import Decoder


@struct.dataclass
class DepthScores:
    """What the depths say about the next-token targets.

    Attributes:
        losses: [D, B, S] cross entropy in nats.
        weights: [D, B, S] 1 where a target counts at that depth.
    """

    losses: jax.Array
    weights: jax.Array


@struct.dataclass
class DepthStatistics:
    """Additive statistics of a loss with prediction depths.

    Attributes:
        rest: of the other terms.
        depths: totals and masses [D].
    """

    rest: Mean | LMStatistics
    depths: Mean


@dataclass(frozen=True)
class DepthTerm:
    """The term a run adds.

    Attributes:
        weight: of the mean over the depths; None adds nothing and computes none.
    """

    weight: float | None = None

    @property
    def needed(self) -> bool:
        """Whether the depths are computed."""
        return self.weight is not None

    def check(self, model: Decoder) -> None:
        """Refuse a negative weight, and a model without prediction depths.

        Raises:
            ValueError: naming the argument.
        """
        if self.weight is None:
            return
        if self.weight < 0:
            raise ValueError(f"mtp_weight={self.weight} must be 0 or more")
        if not getattr(model, "num_nextn_predict_layers", 0):
            raise ValueError(
                f"mtp_weight={self.weight} trains prediction depths, and the model has none; set its "
                "num_nextn_predict_layers"
            )

    def statistics(self, rest: Mean | LMStatistics, scores: DepthScores) -> DepthStatistics:
        """The loss's statistics with the depths' beside the `rest`."""
        total = jnp.sum(scores.losses * scores.weights, axis=(1, 2))
        return DepthStatistics(rest, Mean(total, jnp.sum(scores.weights, axis=(1, 2))))

    def reduced(self, depths: Mean) -> tuple[jax.Array, jax.Array]:
        """The weighted term and whether any target counts in it."""
        assert self.weight is not None, "statistics of depths come from a run with mtp_weight alone"
        return self.weight * depth_mean(depths), jnp.any(jnp.asarray(depths.mass) > 0)


def depth_mean(depths: Mean) -> jax.Array:
    """`(1 / D) sum T_k / M_k`; a depth without a target adds nothing."""
    return jnp.mean(mean_loss(depths)[0])


def depth_weights(weights: jax.Array, depths: int, segment_ids: jax.Array | None) -> jax.Array:
    """Which targets count at every depth, [D, B, S].

    Args:
        weights: [B, S], which count at all.
        depths: D.
        segment_ids: [B, S], the document of each token that predicts, or None.
    """
    exists = [present(depth, segment_ids, weights.shape) for depth in range(1, depths + 1)]
    return jnp.stack([jnp.where(each, weights, 0) for each in exists])


def with_reports(sown: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What two calls reported, whose modules are different ones."""
    return {name: {**sown.get(name, {}), **more.get(name, {})} for name in {*sown, *more}}
