"""Objectives so small that every number in a test can be worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from dew.objectives.base import Aux, Mean, Objective
from dew.telemetry.tracker import Tracker


class Regression(Objective[Any, Any]):
    """Weighted least squares: `sum m (x w - y)^2 / sum m`, rows masked by `m`; noise is optional."""

    unit = "rows"

    def __init__(
        self, width: int = 3, *, ema: Any = None, noise: float = 0.0, dtype: Any = jnp.float32
    ) -> None:
        self.width, self.ema, self.noise, self.dtype = width, ema, noise, dtype

    def init(self, key, variables=None):
        return {"params": {"w": jax.random.normal(key, (self.width,)).astype(self.dtype)}}

    def loss(self, params, batch, step):
        noise = self.noise * jax.random.normal(step.key, batch["y"].shape)
        error = batch["x"] @ params["params"]["w"] - batch["y"] + noise
        return Mean(jnp.sum(batch["m"] * error**2), jnp.sum(batch["m"])), Aux({"bias": jnp.sum(error)})


class Linear(Objective[Any, Any]):
    """A loss linear in its one parameter.

    Total `sum(g) * w`, mass `sum(m)`, so that gradients are the data.
    """

    def __init__(self, *, ema: Any = None, dtype: Any = jnp.float32, start: float = 0.0) -> None:
        self.ema, self.dtype, self.start = ema, dtype, start

    def init(self, key, variables=None):
        return {"params": {"w": jnp.asarray(self.start, self.dtype)}}

    def loss(self, params, batch, step):
        w = params["params"]["w"]
        return Mean(jnp.sum(batch["g"].astype(w.dtype) * w), jnp.sum(batch["m"])), Aux()


@struct.dataclass
class Moments:
    first: Any
    second: Any
    rows: Any


class Spread(Objective[Any, Any]):
    """The variance of `x w` over the rows: a loss that no mean over microbatches gives."""

    def init(self, key, variables=None):
        return {"params": {"w": jax.random.normal(key, (3,))}, "counts": {"seen": jnp.asarray(0)}}

    def loss(self, params, batch, step):
        out = batch["x"] @ params["params"]["w"]
        out = out * (1 + params["counts"]["seen"])
        stats = Moments(jnp.sum(out), jnp.sum(out**2), jnp.asarray(len(out)))
        return stats, Aux(variables={"counts": {"seen": params["counts"]["seen"] + 1}})

    def reduce_loss(self, stats):
        mean = stats.first / stats.rows
        return stats.second / stats.rows - mean**2, stats.rows > 0


class Recorder(Tracker):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []

    def started(self, *, step, total_steps, unit):
        self.events.append(("started", step, (total_steps, unit)))

    def log(self, values, *, step):
        self.events.append(("log", step, dict(values)))

    def evaluated(self, values, *, step):
        self.events.append(("evaluated", step, dict(values)))

    def preview(self, artifacts, *, step):
        self.events.append(("preview", step, artifacts))

    def checkpointed(self, path, *, step):
        self.events.append(("checkpointed", step, path))

    def finished(self, status, *, step):
        self.events.append(("finished", step, status))

    def of(self, kind: str) -> dict[int, Any]:
        return {step: value for name, step, value in self.events if name == kind}


@pytest.fixture
def toys() -> SimpleNamespace:
    return SimpleNamespace(
        Regression=Regression, Linear=Linear, Spread=Spread, Moments=Moments, Recorder=Recorder
    )
