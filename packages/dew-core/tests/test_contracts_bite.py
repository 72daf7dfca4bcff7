"""The contract tests of `dew.testing` fail on the faults they are there for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.objectives.base import Aux, Mean, Objective, Step
from dew.testing import MetricContract, ObjectiveContract


class Line(Objective[Mean, None]):
    """Least squares of a line."""

    def init(self, key: jax.Array, variables: Any = None) -> Any:
        return {"params": {"slope": jax.random.normal(key, (2,))}}

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        error = batch["x"] @ params["params"]["slope"] - batch["y"]
        return Mean(jnp.sum(error**2), jnp.asarray(len(error), jnp.float32)), Aux()


def contract(kind: type[Objective[Any, Any]]) -> ObjectiveContract:
    class Contract(ObjectiveContract):
        def objective(self) -> Objective[Any, Any]:
            return kind()

        def batch(self, rows: int) -> Any:
            x = np.arange(8, dtype=np.float32).reshape(4, 2)[:rows] / 8
            return {"x": x, "y": x[:, 0]}

    return Contract()


class Impure(Line):
    calls = 0

    def init(self, key: jax.Array, variables: Any = None) -> Any:
        type(self).calls += 1
        return {"params": {"slope": jnp.full((2,), float(self.calls))}}


class Divided(Line):
    """Divides by its own mass, so that halves do not add up."""

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        stats, aux = super().loss(params, batch, step)
        return Mean(stats.total / stats.mass, stats.mass), aux


class Infinite(Line):
    """The gradient of a square root at zero."""

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        stats, aux = super().loss(params, batch, step)
        zero = 0 * params["params"]["slope"].sum()
        return Mean(stats.total + jnp.sqrt(zero), stats.mass), aux


class Weighted(Line):
    """A mass that depends on the parameters."""

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        stats, aux = super().loss(params, batch, step)
        return Mean(stats.total, stats.mass * params["params"]["slope"].sum() ** 2), aux


class Overwriting(Line):
    """Replaces the optimizer's own collection."""

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        stats, _ = super().loss(params, batch, step)
        return stats, Aux(variables={"params": params["params"]})


class Clocked(Line):
    """Reads the Python clock of its own calls."""

    calls = 0

    def loss(self, params: Any, batch: Any, step: Step) -> tuple[Any, Aux]:
        type(self).calls += 1
        stats, aux = super().loss(params, batch, step)
        return Mean(stats.total * self.calls, stats.mass), aux


FAULTS: Mapping[str, type[Objective[Any, Any]]] = {
    "test_init_is_pure_in_its_key": Impure,
    "test_statistics_add_over_the_rows": Divided,
    "test_accumulated_window_equals_the_whole_batch": Divided,
    "test_loss_and_its_gradients_are_finite": Infinite,
    "test_mass_is_free_of_the_parameters": Weighted,
    "test_loss_leaves_the_parameters_alone": Overwriting,
    "test_stopped_and_resumed_run_equals_the_uninterrupted_one": Clocked,
}


@pytest.mark.parametrize("test", [name for name in dir(ObjectiveContract) if name.startswith("test_")])
def test_sound_objective_passes(test: str):
    getattr(contract(Line), test)()


@pytest.mark.parametrize("test", FAULTS)
def test_faulty_objective_fails(test: str):
    with pytest.raises(AssertionError):
        getattr(contract(FAULTS[test]), test)()


class Largest:
    """A metric over numbers with a choice of how to merge."""

    name = "largest"
    higher_is_better = True
    reads = float

    def __init__(self, merge: Callable[[float, float], float]) -> None:
        self.merge = merge

    def __call__(self, artifact: float) -> float:
        return artifact

    def finalize(self, accumulated: float) -> float:
        return accumulated


def metric_contract(merge: Callable[[float, float], float]) -> MetricContract:
    class Contract(MetricContract):
        def metric(self) -> Any:
            return Largest(merge)

        def artifacts(self) -> list[Any]:
            return [1.0, 3.0, 2.0]

        def expected(self) -> float:
            return 3.0

    return Contract()


def test_metric_that_keeps_the_largest_passes():
    for name in (name for name in dir(MetricContract) if name.startswith("test_")):
        getattr(metric_contract(max), name)()


def test_metric_that_keeps_the_last_fails():
    with pytest.raises(AssertionError):
        metric_contract(lambda old, new: new).test_value_of_a_pass_is_the_expected_one()
