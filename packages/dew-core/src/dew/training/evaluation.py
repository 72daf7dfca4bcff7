"""A validation pass: every row scored on the devices, reduced by the metrics on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from dew.artifacts import Artifacts
from dew.data.dataset import BatchIterator
from dew.failure import NothingCounted
from dew.objectives.base import Batch, Metric, Objective, Step
from dew.training.artifact_trees import disassemble, host_artifacts
from dew.training.companion import read_on
from dew.training.state import TrainState
from dew.training.validation import global_batches

EVALUATION_STREAM = 0xFFFFFFFF
PREVIEW_STREAM = 0xFFFFFFFE
"""Folded into the root key; attempts count up from 0 and never reach them."""


class Evaluator:
    """Scores validation passes with the metrics, and draws previews.

    `objective.evaluate` is compiled, once for each batch shape. One that cannot be traced, because it
    computes on the host, runs as it is written.
    """

    def __init__(self, objective: Objective[Any, Any], metrics: Sequence[Metric[Any]], mesh: Mesh) -> None:
        self._objective = objective
        self._metrics = metrics
        self._mesh = mesh
        self._score = _Scorer(objective)

    def scores(self, state: TrainState, source: BatchIterator) -> tuple[dict[str, float], Batch, Artifacts]:
        """The metrics over one pass, and its first batch with that batch's artifacts on the host.

        Batch `n` of every pass draws from the same key, so that passes differ by the weights alone.

        Args:
            state: the weights; read and left as they are.
            source: a finite pass; borrowed.

        Raises:
            NothingCounted: the pass has no batch.
            TypeError: a metric finds no artifact of the type it reads.
        """
        state = read_on(self._mesh, state)
        root = jax.random.fold_in(state.key, EVALUATION_STREAM)
        gathered: list[Any] = [None] * len(self._metrics)
        first: tuple[Batch, Artifacts] | None = None
        for index, batch in enumerate(global_batches(source, self._mesh)):
            with jax.set_mesh(self._mesh):
                artifacts = host_artifacts(self._score(state, batch, jax.random.fold_in(root, index)))
            first = first or (batch, artifacts)
            for slot, metric in enumerate(self._metrics):
                contribution = metric(_readable(artifacts, metric, self._objective))
                held = gathered[slot]
                gathered[slot] = contribution if index == 0 else metric.merge(held, contribution)
            if not self._metrics:
                break
        if first is None:
            raise NothingCounted("the validation pass has no batch; give it data, or leave eval_every None")
        values = {
            metric.name: float(metric.finalize(held))
            for metric, held in zip(self._metrics, gathered, strict=True)
        }
        return values, *first

    def preview(self, state: TrainState, batch: Batch, scored: Artifacts) -> Artifacts | None:
        """What the objective shows for `batch`, on the host; its key differs from the scoring keys."""
        state = read_on(self._mesh, state)
        key = jax.random.fold_in(jax.random.fold_in(state.key, PREVIEW_STREAM), state.step)
        with jax.set_mesh(self._mesh):
            shown = self._objective.preview(state.params, batch, _reading_step(state, key), scored=scored)
            return None if shown is None else host_artifacts(shown)


class _Scorer:
    """`objective.evaluate` behind a jit whose arguments are the arrays it reads."""

    def __init__(self, objective: Objective[Any, Any]) -> None:
        self._objective = objective
        self._builders: dict[Any, Callable[[list[Any]], Any]] = {}
        self._compiled = jax.jit(self._traced)
        self._traceable = True

    def __call__(self, state: TrainState, batch: Batch, key: jax.Array) -> Artifacts | None:
        if self._traceable:
            try:
                arrays = self._compiled(state, batch, key)
                return self._builders[_signature(batch)](arrays)
            except jax.errors.JAXTypeError:
                self._traceable = False
        return self._objective.evaluate(state.params, batch, _reading_step(state, key))

    def _traced(self, state: TrainState, batch: Batch, key: jax.Array) -> list[jax.Array]:
        artifacts = self._objective.evaluate(state.params, batch, _reading_step(state, key))
        arrays: list[Any] = []
        self._builders[_signature(batch)] = disassemble(artifacts, arrays)
        return arrays


def _reading_step(state: TrainState, key: jax.Array) -> Step:
    return Step(step=state.microstep, key=key, ema=None if state.ema is None else state.averaged)


def _signature(batch: Batch) -> Any:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(batch))


def _readable(artifacts: Artifacts, metric: Metric[Any], objective: Objective[Any, Any]) -> Any:
    offered: tuple[Any, ...] = artifacts if isinstance(artifacts, tuple) else (artifacts,)
    for artifact in offered:
        if isinstance(artifact, metric.reads):
            return artifact
    kinds = ", ".join(type(artifact).__name__ for artifact in offered)
    raise TypeError(
        f"metric {metric.name!r} reads {metric.reads.__name__}, and {type(objective).__name__}.evaluate "
        "returned "
        f"{kinds}; choose a metric for that artifact"
    )
