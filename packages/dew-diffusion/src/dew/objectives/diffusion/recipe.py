"""`dew train diffusion`: from a configuration to a trained state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.objectives.diffusion.config import DiffusionRunConfig
from dew.training.runtime import prepare_process

if TYPE_CHECKING:
    from dew.training.state import TrainState


def train(config: DiffusionRunConfig) -> TrainState:
    """Build and train as `config` says; validation draws an image for every real one and shows a few.

    Raises:
        ValueError: settings that do not fit each other or the data.
        ImportError: a package that ships or decodes the images is not installed.
    """
    prepare_process(config.trainer)
    asked = config.text
    config = config.resolved()
    if asked is not None and config.text is None:
        print("the images have no classes: the model is trained without a condition")
    objective = config.build()
    metrics = config.build_eval_metrics()
    dataset = config.data.load(batch=config.trainer.batch_size)
    return config.train(objective, dataset, name=config.run_name("diffusion"), metrics=metrics)
