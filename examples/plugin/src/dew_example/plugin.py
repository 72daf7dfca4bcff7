"""What this plugin adds to Dew."""

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
CONFIG = "dew_example.config:SineConfig"


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts, by name; each is imported on first use."""
    yield Component("recipe", "sine", "dew_example.learn:train", "Fit a noisy sine.", config=CONFIG)
    yield Component("objective", "sine", "dew_example.learn:Regression", "Squared error.", config=CONFIG)
    yield Component("model", "sine_mlp", "dew_example.learn:SineMLP", "Two hidden layers.")
    yield Component("metric", "absolute_error", "dew_example.learn:AbsoluteError", "Mean absolute error.")
    yield Component("dataset", "noisy_sine", "dew_example.config:NoisySine", "Points on a sine, with noise.")
