"""What probes score without learning: on raw pixels, random convolutions and the encoder as it starts.

A representation is worth what it adds to these. They are measured once, over the same rows as the run's own
probes, and shown beside them at every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.data.dataset import DataPartition, Dataset
from dew.nn.sharding import unboxed
from dew.objectives.base import Metric
from dew.objectives.jepa.objective import JepaObjective
from dew.objectives.jepa.representation import PROBE_KEY, Representation

type Featurize = Callable[[jax.Array], jax.Array]
"""From images [B, H, W, C] in [-1, 1] to features [B, D]."""

CONVOLUTION = 8
"""Side of a random convolution's window in pixels, or of the image where that is less."""
FILTERS = 64


@dataclass(frozen=True)
class Reference:
    """A number that does not change over a run, shown as a metric beside one that does.

    Attributes:
        name: of the metric.
        value: what every evaluation reports.
    """

    name: str
    value: float
    higher_is_better: bool = True
    reads: type[Representation] = Representation

    def __call__(self, artifact: Representation) -> None:
        return None

    def merge(self, accumulated: None, contribution: None) -> None:
        return None

    def finalize(self, accumulated: None) -> float:
        return self.value


def references(
    objective: JepaObjective, dataset: Dataset, probes: Sequence[Metric[Any]], *, key: jax.Array
) -> list[Reference]:
    """The score of every probe on each of the representations that nothing was learned for.

    Args:
        objective: whose encoder is taken at its initial weights.
        dataset: with probe rows in its validation pass.
        probes: the metrics to score.
        key: that the run initialises from.
    """
    variables = unboxed(objective.initializer(key))
    kinds: dict[str, Featurize] = {
        "random_init": lambda images: jnp.mean(objective.features(variables, images), axis=1),
        "raw_pixels": lambda images: images.reshape(len(images), -1),
        "random_convolutions": random_convolutions(jax.random.fold_in(key, 1), objective.sample.shape),
    }
    found: list[Reference] = []
    for kind, featurize in kinds.items():
        pass_ = list(represented(objective, dataset, jax.jit(featurize)))
        for probe in probes:
            value = scored(probe, pass_)
            found.append(Reference(f"{probe.name}.{kind}", value))
    return found


def random_convolutions(key: jax.Array, sample: tuple[int, ...]) -> Featurize:
    """64 random filters of 8x8 pixels, or less in a smaller image, ReLU and the average over all places.

    Args:
        key: of the filters.
        sample: height, width and channels of an image.
    """
    height, width, channels = sample
    window = min(CONVOLUTION, height), min(CONVOLUTION, width)
    filters = jax.random.normal(key, (*window, channels, FILTERS))

    def featurize(images: jax.Array) -> jax.Array:
        maps = jax.lax.conv_general_dilated(
            images, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jax.nn.relu(maps), axis=(1, 2))

    return featurize


def represented(objective: JepaObjective, dataset: Dataset, featurize: Featurize) -> Iterator[Representation]:
    """Every batch of the validation pass under `featurize`, on the host."""
    assert dataset.val is not None
    with closing(dataset.val(DataPartition())) as source:
        for batch in source:
            yield Representation(
                features=np.asarray(featurize(objective.images(batch))),
                labels=batch.get(objective.label_key),
                use=batch.get(PROBE_KEY),
            )


def scored(probe: Metric[Any], pass_: Sequence[Representation]) -> float:
    """What `probe` makes of one pass."""
    gathered = probe(pass_[0])
    for artifact in pass_[1:]:
        gathered = probe.merge(gathered, probe(artifact))
    return probe.finalize(gathered)
