"""The term that trains a lightning indexer (DeepSeek-V3.2, arXiv 2512.02556, section 2.1.1).

With p the mean over heads of a query's attention and I the indexer's scores, the term is
`KL(p || softmax(I))` over the keys the query sees, averaged over queries that hold a token and over layers.
All its inputs are cut off from the gradient, so it trains the indexers alone, and nothing but it trains them:
a choice of keys has no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
from flax import struct
from flax.traverse_util import flatten_dict

from dew.nn.backbones.causal_transformer.depths import depth_of, present
from dew.nn.backbones.causal_transformer.indexer import INDEXER as INDEXER
from dew.objectives.base import Mean, Variables, mean_loss
from dew.objectives.lm.config import IndexerTraining
from dew.objectives.lm.depths import DepthStatistics
from dew.objectives.lm.routing import LMStatistics

if TYPE_CHECKING:
    from dew.nn.backbones.causal_transformer.mixers import MLA
    from dew.objectives.lm.decoder import Decoder


@struct.dataclass
class IndexerScores:
    """How far the indexers are from the attention.

    Attributes:
        divergence: [L, B, S] in nats, of every layer, prediction depths' included.
        weights: [L, B, S] 1 where the query holds a token that the layer has, 0 elsewhere.
    """

    divergence: jax.Array
    weights: jax.Array

    @property
    def mean(self) -> Mean:
        """The summed divergence and the number of queries."""
        return Mean(jnp.sum(self.divergence * self.weights), jnp.sum(self.weights))


@struct.dataclass
class IndexedStatistics:
    """Additive statistics of a loss with the indexers' term.

    Attributes:
        rest: of the other terms.
        divergence: of the indexers.
    """

    rest: Mean | LMStatistics | DepthStatistics
    divergence: Mean


@dataclass(frozen=True)
class IndexerTerm:
    """The term a run adds, or trains by alone.

    Attributes:
        training: phase and weight; None computes nothing.
    """

    training: IndexerTraining | None = None

    @property
    def needed(self) -> bool:
        """Whether the divergence is computed."""
        return self.training is not None

    @property
    def alone(self) -> bool:
        """Whether the indexers are all that is trained."""
        return self.training is not None and self.training.phase == "warmup"

    def check(self, model: Decoder, others: Mapping[str, object]) -> None:
        """Refuse a model without the indexer that the phase needs, and arguments that contradict it.

        Args:
            model: the decoder.
            others: arguments of the objective that have no part in a warm-up, by name.

        Raises:
            ValueError: naming the argument.
        """
        if self.training is None:
            return
        named = f"indexer phase={self.training.phase!r}"
        if others.get("trainable") is not None:
            raise ValueError(f"trainable with {named}, which says itself what is trained; leave one out")
        mixer = cast("MLA | None", getattr(model, "mixer", None))
        if mixer is None or mixer.index_n_heads is None:
            raise ValueError(
                f"{named} trains an indexer, and the model has none; set index_n_heads and index_head_dim of "
                "its mixer"
            )
        if self.alone and mixer.index_topk is not None:
            raise ValueError(
                f"{named} runs dense attention, and the mixer has index_topk={mixer.index_topk}; unset it, "
                "or use phase='sparse'"
            )
        if not self.alone and mixer.index_topk is None:
            raise ValueError(
                f"{named} trains on the keys that the indexer selects, and the mixer's index_topk is unset; "
                "set it, or use phase='warmup'"
            )
        for name, value in others.items() if self.alone else ():
            if value:
                raise ValueError(
                    f"{name}={value!r} with {named}, which trains the indexer alone; leave it out"
                )

    def statistics(
        self, rest: Mean | LMStatistics | DepthStatistics, scores: IndexerScores
    ) -> Mean | IndexedStatistics:
        """The loss's statistics: of a warm-up the divergence alone, else with the `rest` beside it."""
        assert self.training is not None, "scored in a run with indexer alone"
        if not self.alone:
            return IndexedStatistics(rest, scores.mean)
        found = scores.mean
        return Mean(self.training.weight * found.total, found.mass)

    def reduced(self, divergence: Mean) -> tuple[jax.Array, jax.Array]:
        """The weighted term and whether any query counts in it."""
        assert self.training is not None, "statistics of indexers come from a run with indexer alone"
        value, active = mean_loss(divergence)
        return self.training.weight * value, active


def of_indexer(path: tuple[str, ...]) -> bool:
    """Whether a leaf of the variables is an indexer's."""
    return INDEXER in path


def indexer_scores(
    sown: Variables, counted: jax.Array | None, segment_ids: jax.Array | None = None
) -> IndexerScores:
    """What the layers of a forward pass reported.

    Args:
        sown: the collections that came back.
        counted: [B, S], which queries hold a token; None for all.
        segment_ids: [B, S], the document of each query, or None.

    Raises:
        ValueError: the model reported none.
    """
    reported = cast("dict[tuple[str, ...], jax.Array]", flatten_dict(dict(sown.get(INDEXER, {}))))
    if not reported:
        raise ValueError(
            f"indexer=True needs a model whose attention layers sow divergence into {INDEXER!r}; leave it at "
            "False"
        )
    divergence = jnp.stack(list(reported.values()))
    held = jnp.ones(divergence.shape[1:], bool) if counted is None else counted
    weights = [
        held & present(depth, segment_ids, held.shape) if (depth := depth_of(path[0])) else held
        for path in reported
    ]
    return IndexerScores(divergence, jnp.stack(weights).astype(jnp.float32))
