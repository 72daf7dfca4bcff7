"""Dew's contract tests over every part of this plugin."""

import numpy as np
from dew_example.config import NoisySine, SineConfig
from dew_example.learn import AbsoluteError, Predictions, Regression, SineMLP

from dew.config import TrainerConfig
from dew.testing import (
    ComponentContract,
    ConfigContract,
    DatasetContract,
    DatasetExample,
    MetricContract,
    MetricExample,
    ModelExample,
    ObjectiveContract,
    ObjectiveExample,
    PluginContract,
    RecipeExample,
    registered,
)


class TestRegression(ObjectiveContract):
    def objective(self):
        return Regression(SineMLP(width=4))

    def batch(self, rows):
        x = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
        return {"x": x, "y": np.sin(x)}


class TestSineConfig(ConfigContract):
    def config(self):
        return SineConfig(data=NoisySine(points=64, noise=0.2), trainer=TrainerConfig(steps=5))


class TestNoisySine(DatasetContract):
    def spec(self):
        return NoisySine(points=64)


class TestAbsoluteError(MetricContract):
    def metric(self):
        return AbsoluteError()

    def artifacts(self):
        zeros = [np.zeros((rows, 1)) for rows in (1, 2, 3)]
        return [Predictions(zero, zero + error) for zero, error in zip(zeros, (6.0, -3.0, 1.0), strict=True)]

    def expected(self):
        return (6 + 2 * 3 + 3 * 1) / 6


def points(rows):
    x = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
    return {"x": x, "y": np.sin(x)}


def predictions():
    return [Predictions(np.zeros((rows, 1)), np.full((rows, 1), 1.0 / rows)) for rows in (1, 2, 4)]


def config():
    return SineConfig(data=NoisySine(points=64))


class TestComponents(ComponentContract):
    """Every part once more, by its registered name: a part added later without an example fails here."""

    def components(self):
        return registered("example")

    def examples(self):
        return {
            ("model", "sine_mlp"): ModelExample(
                fields={"width": 4}, inputs=lambda rows: {"x": points(rows)["x"]}
            ),
            ("objective", "sine"): ObjectiveExample(config=config, batch=points),
            ("recipe", "sine"): RecipeExample(config=config),
            ("metric", "absolute_error"): MetricExample(artifacts=predictions, expected=3 / 7),
            ("dataset", "noisy_sine"): DatasetExample(fields={"points": 64}),
        }


class TestPlugin(PluginContract):
    def name(self):
        return "example"
