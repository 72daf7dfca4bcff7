"""The model, the objective, the metric and the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np

from dew.data import Dataset
from dew.inputs import Field, InputSpec
from dew.objectives import Aux, Mean, Objective, Step
from dew.training import TrainState
from dew_example.config import NoisySine, SineConfig


class SineMLP(nn.Module):
    """Two hidden layers."""

    width: int = 32
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.width, dtype=self.dtype)(x))
        return nn.Dense(1, dtype=self.dtype)(x)


@dataclass(frozen=True)
class Predictions:
    """What evaluation yields: `[B, 1]` values and what they should have been."""

    values: Any
    targets: Any


class Regression(Objective):
    """Squared error of a prediction."""

    artifact = Predictions
    unit = "points"

    def __init__(self, model: SineMLP, variables: Any = None) -> None:
        self.model = model
        self.inputs = InputSpec(sample=Field("x", (1,)))
        self.held = variables

    def held_variables(self) -> Any:
        return self.held

    def init(self, key: jax.Array, variables: Any = None) -> Any:
        return self.model.init(key, jnp.zeros((1, 1))) if variables is None else variables

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Mean, Aux]:
        error = self.model.apply(params, batch["x"]) - batch["y"]
        return Mean(jnp.sum(error**2), jnp.asarray(len(error), jnp.float32)), Aux()

    def evaluate(self, params: Any, batch: Any, step: Step) -> Predictions:
        return Predictions(self.model.apply(params, batch["x"]), batch["y"])


class AbsoluteError:
    """Mean absolute error over a pass."""

    name = "absolute_error"
    higher_is_better = False
    reads = Predictions

    def __call__(self, artifact: Predictions) -> tuple[float, int]:
        return float(np.abs(artifact.values - artifact.targets).sum()), len(artifact.values)

    def merge(self, accumulated: tuple[float, int], contribution: tuple[float, int]) -> tuple[float, int]:
        return accumulated[0] + contribution[0], accumulated[1] + contribution[1]

    def finalize(self, accumulated: tuple[float, int]) -> float:
        return accumulated[0] / accumulated[1]


def open_points(spec: NoisySine, batch: int) -> Dataset:
    """The dataset of `spec`."""
    draw = np.random.default_rng(spec.seed)
    x = draw.uniform(-np.pi, np.pi, (spec.points, 1)).astype(np.float32)
    y = np.sin(x) + spec.noise * draw.standard_normal(x.shape).astype(np.float32)
    points = grain.MapDataset.source([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    held = spec.points // 8
    return Dataset.from_grain(
        points[:-held].seed(spec.seed).shuffle(),
        batch=batch,
        validation=points[-held:],
        loading=spec.loading,
        fingerprint={"points": spec.points, "noise": spec.noise, "seed": spec.seed},
    )


def train(config: SineConfig) -> TrainState:
    """What `dew train sine` runs."""
    objective = config.build()
    dataset = config.data.load(batch=config.trainer.batch_size)
    return config.train(objective, dataset, name=config.run_name("sine"), metrics=[AbsoluteError()])
