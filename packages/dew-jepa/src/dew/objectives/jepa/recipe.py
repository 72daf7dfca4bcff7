"""`dew train jepa`: from a configuration to a trained state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from dew.data.dataset import Dataset
from dew.objectives.base import Metric
from dew.objectives.jepa.collapse import FeatureCovariance, FeatureDeviation, RankMe
from dew.objectives.jepa.config import JepaRunConfig
from dew.objectives.jepa.knn import KnnProbe
from dew.objectives.jepa.objective import JepaObjective
from dew.objectives.jepa.probe_rows import with_probe_rows
from dew.objectives.jepa.references import references
from dew.objectives.jepa.ridge import LinearProbe
from dew.training.placement import INIT_STREAM
from dew.training.runtime import prepare_process

if TYPE_CHECKING:
    from dew.training.state import TrainState


def train(config: JepaRunConfig) -> TrainState:
    """Build and train as `config` says; validation reports collapse meters and, with labels, probes.

    Raises:
        ValueError: settings that do not fit each other or the data.
    """
    prepare_process(config.trainer)
    objective = config.build()
    dataset = config.data.load(batch=config.trainer.batch_size)
    metrics: list[Metric[Any]] = []
    if config.probe_rows != 0 and has_labels(config) and dataset.val is not None:
        dataset = with_probe_rows(dataset, config.probe_rows)
        metrics += probes(config, objective, dataset)
    metrics += [FeatureDeviation(), FeatureCovariance(), RankMe()]
    return config.train(objective, dataset, name=config.run_name("jepa"), metrics=metrics)


def has_labels(config: JepaRunConfig) -> bool:
    """Whether the data says what its labels are called."""
    return getattr(config.data, "class_names", None) is not None


def probes(config: JepaRunConfig, objective: JepaObjective, dataset: Dataset) -> list[Metric[Any]]:
    """The probes of the target encoder, and what they score on representations that were not learned."""
    own: list[Metric[Any]] = [LinearProbe(), KnnProbe()]
    if config.trainer.eval_every is None:
        return own
    root = jax.random.fold_in(jax.random.key(config.trainer.seed), INIT_STREAM)
    return [*own, *references(objective, dataset, own, key=root)]
