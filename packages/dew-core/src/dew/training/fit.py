"""The fit loop: batches through the compiled step, with what is due after each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax

from dew.data.dataset import DataPartition, Dataset
from dew.failure import DataEnded
from dew.objectives.base import Batch, Metric, Objective
from dew.telemetry.account import COMPILE, EVALUATION, PROFILE, RESTORE, SAVE, TimeAccount
from dew.training import pool, preemption
from dew.training.agreement import BatchAgreement, agree
from dew.training.batch_fields import counted_units
from dew.training.cleanup import Cleanup
from dew.training.companion import CompanionStep, read_on
from dew.training.compiled import CompiledStep
from dew.training.counted import CountedTargets
from dew.training.distributed import maximum_across_processes, shard_batch
from dew.training.evaluation import Evaluator
from dew.training.microbatch import attempt_step
from dew.training.performance import Performance
from dew.training.prefetch import DevicePrefetchIterator
from dew.training.profile import Profiler
from dew.training.rate import CountedSource
from dew.training.rejections import Rejections
from dew.training.reports import GuardedTracker
from dew.training.saving import Saver, without_empty_window
from dew.training.state import TrainState
from dew.training.step import StepResult

if TYPE_CHECKING:
    from dew.training.trainer import Trainer

AGREE_EVERY = 16
"""Steps between the processes' agreements on whether one of them was asked to stop."""

WAIT_S = 0.5
"""Seconds of waiting for data after which a request to stop is looked for."""

ROLLOUT_STREAM = 0xFFFFFFFC
"""Folded into the root key for rollouts; attempts count up from 0 and never reach it."""


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What one call of `fit` does, and how often; see `Trainer.fit`."""

    steps: int
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None
    metrics: tuple[Metric[Any], ...]
    preview: bool

    def check(self, objective: Objective[Any, Any], data: Dataset) -> None:
        """Refuse a plan that contradicts itself or the data.

        Raises:
            ValueError: a cadence below 1, metrics or previews without evaluation, evaluation without
                validation data, or a metric that cannot read the objective's artifact.
        """
        for name in ("steps", "log_every", "eval_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.eval_every is None and (self.metrics or self.preview):
            what = f"metrics={[metric.name for metric in self.metrics]}" if self.metrics else "preview=True"
            raise ValueError(f"{what} needs validation passes; set eval_every")
        if self.eval_every is not None and data.val is None:
            raise ValueError(
                f"eval_every={self.eval_every}, and the dataset has no validation data; leave it None"
            )
        for metric in self.metrics:
            artifact = objective.artifact
            if artifact is not None and not (issubclass(artifact, metric.reads) or artifact is tuple):
                raise ValueError(
                    f"metric {metric.name!r} reads {metric.reads.__name__}, and {type(objective).__name__} "
                    "evaluates "
                    f"to {artifact.__name__}; choose a metric for that artifact"
                )


def run_fit(trainer: Trainer, data: Dataset, plan: FitPlan, share: DataPartition) -> TrainState:
    """Place or restore the state and train it to `plan.steps`; see `Trainer.fit`."""
    account = trainer.account or TimeAccount()
    performance = Performance(trainer.objective, trainer.mesh, account, reached=trainer.reached)
    with pool.watched(), performance.listening():
        agree("the run", _facts(trainer, data, plan))
        return _fitted(trainer, data, plan, share, performance)


def _fitted(
    trainer: Trainer, data: Dataset, plan: FitPlan, share: DataPartition, performance: Performance
) -> TrainState:
    if trainer.checkpoints is not None and trainer.checkpoints.latest is not None:
        performance.account.turn(RESTORE)
    state, _, position = trainer.place()
    performance.opening()
    if int(state.step) >= plan.steps:
        return state
    if trainer.checkpoints is not None:
        trainer.checkpoints.open()
    loop = _Loop(trainer, data, plan, share, state, performance)
    try:
        with Cleanup() as cleanup:
            loop.open(position, cleanup)
            loop.run()
    except BaseException as error:
        stopped = isinstance(error, (preemption.Preempted, KeyboardInterrupt))
        loop.finish("interrupted" if stopped else "failed")
        raise
    loop.finish("completed")
    return without_empty_window(loop.state)


def _facts(trainer: Trainer, data: Dataset, plan: FitPlan) -> dict[str, object]:
    """What every process of a run must have been given alike."""
    if jax.process_count() == 1:
        return {}
    return {
        **vars(plan),
        "metrics": [metric.name for metric in plan.metrics],
        "objective": type(trainer.objective).__name__,
        "accumulation": trainer.accumulation,
        "key": jax.random.key_data(trainer.key).tolist(),
        "batch": data.batch,
        "records": data.records,
        "ramp": data.ramp,
        "latest checkpoint": None if trainer.checkpoints is None else trainer.checkpoints.latest,
    }


class _Loop:
    """The moving parts of one call of `fit`, each event of a step a method."""

    def __init__(
        self,
        trainer: Trainer,
        data: Dataset,
        plan: FitPlan,
        share: DataPartition,
        state: TrainState,
        performance: Performance,
    ) -> None:
        self.state = state
        self.step = int(state.step)
        self.tracker = GuardedTracker(trainer.tracker)
        self._trainer = trainer
        self._data = data
        self._plan = plan
        self._share = share
        self._performance = performance
        self._profiler = Profiler(trainer.profile, lambda: performance.apart(PROFILE))
        self._counted = CountedTargets(state, accumulation=trainer.accumulation)
        self._rejections = Rejections(dynamic_scale=trainer.dynamic_scale)
        self._evaluator = Evaluator(trainer.objective, plan.metrics, trainer.mesh)
        self._saver = Saver(trainer.checkpoints, self.tracker, share, plan.metrics)
        self._compiled: CompiledStep | CompanionStep | None = None
        self._result: StepResult | None = None
        self._first: Batch | None = None
        self._started = False
        self._agreement = BatchAgreement()
        self._compiling = {stage.step for stage in data.stages.stages}

    def open(self, position: bytes | None, cleanup: Cleanup) -> None:
        """Open the training data at `position`, read its first batch and register what must be closed.

        The run has not started before: a position that belongs to other data leaves no trace of an attempt.

        Raises:
            ValueError: data that cannot go on from `position`, reports none, or lacks a field.
            DataEnded: the data has no batch.
        """
        cleanup.add("waiting for the pending checkpoint", self._saver.wait)
        source = self._data.train(self._share)
        periodic = {"checkpoint_every": self._plan.checkpoint_every, "local_every": self._saver.copies_every}
        asked = {name: every for name, every in periodic.items() if every is not None}
        if asked and self._saver.keeps and not hasattr(source, "get_state"):
            getattr(source, "close", lambda: None)()
            name, every = next(iter(asked.items()))
            raise ValueError(
                f"{name}={every}, and the training data reports no read position, so no checkpoint of it "
                "could be resumed; give the source get_state and set_state (or build it over a "
                f"grain.MapDataset), or leave {name} None and train it in one go"
            )
        trainer, shares = self._trainer, self._share.count
        reads = trainer.rollout is None and not trainer.custom
        self._source = CountedSource(
            source, lambda batch: shares * counted_units(trainer.objective, batch, check=reads)
        )
        self._batches = DevicePrefetchIterator(self._source, self._trainer.mesh, source_state=position)
        cleanup.add("closing the training data", self._batches.close)
        cleanup.add("writing the profile", self._profiler.stop)
        if self.step and position is None:
            raise ValueError(
                f"step {self.step} was saved without a data position, so its data cannot be continued; "
                "start a new run, or train on data that reports its position"
            )
        self._first = self._next_batch()
        if self._trainer.rollout is None:
            # Built before the run counts as started: a step that cannot be is refused without a trace of it.
            self._compiled = self._trainer.compile(self.state, self._first)

    def run(self) -> None:
        """Train to the end."""
        plan, unit = self._plan, self._trainer.objective.unit
        self._started = True
        self.tracker.started(step=self.step, total_steps=plan.steps, unit=unit)
        while self.step < plan.steps:
            self.advance()
            self.log_if_due()
            self.evaluate_if_due()
            self.save_if_due()
            self.stop_if_asked()
        self.close()

    def finish(self, status: str) -> None:
        """Tell the tracker how a run that started has ended."""
        if self._started:
            try:
                self.tracker.accounted(self._performance.summary(), step=self.step)
            finally:
                self.tracker.finished(status, step=self.step)

    def advance(self) -> None:
        """Consume one batch."""
        self._performance.stepping(self.step)
        batch, self._first = self._first, None
        if batch is None:
            batch = self._next_batch()
        if self._trainer.rollout is not None:
            batch = self._rolled_out(batch)
        if self._compiled is None:
            self._compiled = self._trainer.compile(self.state, batch)
        units = self._source.counts.popleft()
        self._profiler.before_step()
        if self.step in self._compiling and self._result is not None:
            self._result = self._compiled_anew(self._compiled, batch)
        else:
            self._result = self._compiled(self.state, batch)
            self._performance.stepped(batch, units)
        self.state = self._result.state
        self.step += 1
        self._profiler.after_step(self._result.loss)
        self._rejections.watch(self.step, self._result.accepted)
        self._saver.announce()
        self._performance.settle(self._result.loss)

    def _compiled_anew(self, compiled: CompiledStep | CompanionStep, batch: Batch) -> StepResult:
        """The step at a size of batch that it has not seen: its time, which compiles, is no step's."""
        jax.block_until_ready(self.state.step)
        with self._performance.apart(COMPILE):
            result = compiled(self.state, batch)
            jax.block_until_ready(result.loss)
        return result

    def log_if_due(self) -> None:
        """Report the most recent step and the rate since the last report."""
        if self.step % self._plan.log_every and self.step != self._plan.steps:
            return
        assert self._result is not None
        self.tracker.log(self._values(self._result), step=self.step)
        self.tracker.accounted(self._performance.summary(), step=self.step)

    def evaluate_if_due(self) -> None:
        """Score the validation data, except at the end: there the training data is closed first."""
        every = self._plan.eval_every
        if every is not None and self.step % every == 0 and self.step != self._plan.steps:
            self._evaluate(self._batches.source_state)

    def save_if_due(self) -> None:
        """Write what is due, except at the end: there a checkpoint follows the final evaluation."""
        if self.step == self._plan.steps:
            return
        every, copies = self._plan.checkpoint_every, self._saver.copies_every
        if every is not None and self.step % every == 0:
            self._save()
        elif copies is not None and self.step % copies == 0:
            with self._performance.apart(SAVE):
                self._saver.copy(self.step, self.state, self._batches.source_state)

    def stop_if_asked(self) -> None:
        """Save and stop where a signal asked for it.

        Raises:
            Preempted: always, once the checkpoint is durable.
        """
        asked = preemption.requested() or 0
        if jax.process_count() > 1:
            asked = maximum_across_processes(asked) if self.step % AGREE_EVERY == 0 else 0
        if not asked or self.step == self._plan.steps:
            return
        self._save()
        self._saver.wait()
        raise preemption.Preempted(asked, self.step, saved=self._saver.keeps)

    def close(self) -> None:
        """Close the training data, evaluate and save the final state.

        Raises:
            NothingCounted: no step of the run counted a target.
        """
        self._rejections.drain()
        self._profiler.stop()
        position = self._batches.source_state
        self._batches.close()
        if not self._trainer.custom:  # whose step owns the clocks that this reads
            self._counted.check(self.state)
        if self._plan.eval_every is not None:
            self._evaluate(position)
        with self._performance.apart(SAVE):
            self._saver.save(self.step, self.state, position)
            self._saver.wait()

    def _next_batch(self) -> Batch:
        try:
            with self._performance.waiting():
                self._wait_for_data()
                batch = next(self._batches)
        except StopIteration:
            raise DataEnded(
                f"the training data ended after step {self.step} of {self._plan.steps}; repeat it, or train "
                "for fewer steps"
            ) from None
        self._agreement.check(batch)
        return batch

    def _wait_for_data(self) -> None:
        """Wait for the next batch, and stop where a signal asks for it: a source may never answer.

        Several processes agree on a stop between steps instead, and lose patience with the data together.
        """
        with pool.waiting(f"the training data after step {self.step}"):
            while not self._batches.ready(WAIT_S):
                pool.check()
                asked = preemption.requested()
                if asked and jax.process_count() == 1:
                    if self._started:
                        self._save()
                        self._saver.wait()
                    saved = self._saver.keeps and self.step > 0
                    raise preemption.Preempted(asked, self.step, saved=saved)

    def _values(self, result: StepResult) -> dict[str, float]:
        clocks = (result.state.step, result.state.microstep)
        scale = None if result.state.scale is None else result.state.scale.value
        fetched = jax.device_get((result.loss, result.loss_finite, dict(result.metrics), clocks, scale))
        loss, finite, metrics, (attempted, accepted), factor = fetched
        values = {f"train/{name}": float(value) for name, value in metrics.items()}
        if loss == loss or not finite:  # NaN with finite statistics: nothing had support, so there is no loss
            values["train/loss"] = float(loss)
        elif not self._trainer.custom:
            self._counted.tell(self.step)
        if attempted > accepted and not self._trainer.custom:
            values["train/rejected"] = float(attempted - accepted)
        if factor is not None:
            values["train/loss_scale"] = float(factor)
        return values | self._performance.values()

    def _evaluate(self, position: bytes | None) -> None:
        try:
            self._validate()
        except Exception:
            # What failed is a look at the weights: the steps behind them are kept. Among several processes
            # the failure may be one's alone, and the others would not join the save.
            if jax.process_count() == 1:
                self._saver.save(self.step, self.state, position)
            raise

    def _validate(self) -> None:
        opener = self._data.val
        assert opener is not None
        with self._performance.apart(EVALUATION), Cleanup() as cleanup:
            source = opener(self._share)
            cleanup.add("closing the validation data", getattr(source, "close", lambda: None))
            values, batch, scored = self._evaluator.scores(self.state, source)
            self._saver.note(self.step, values)
            self.tracker.evaluated(
                {f"validation/{name}": value for name, value in values.items()}, step=self.step
            )
            if self._plan.preview:
                shown = self._evaluator.preview(self.state, batch, scored)
                if shown is not None:
                    self.tracker.preview(shown, step=self.step)

    def _save(self) -> None:
        with self._performance.apart(SAVE):
            self._saver.save(self.step, self.state, self._batches.source_state)

    def _rolled_out(self, batch: Batch) -> Batch:
        rollout = self._trainer.rollout
        assert rollout is not None
        state = read_on(self._trainer.mesh, self.state)
        key = jax.random.fold_in(jax.random.fold_in(state.key, ROLLOUT_STREAM), state.step)
        step = replace(attempt_step(state), key=key)
        return shard_batch(rollout(state.params, batch, step), self._trainer.mesh)
