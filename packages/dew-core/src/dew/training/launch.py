"""From a configuration, an objective and a dataset to a trained run in its directory."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import optax

from dew.config import files
from dew.config.names import run_directory
from dew.telemetry import open_tracker
from dew.telemetry.account import TimeAccount, claimed_start
from dew.telemetry.profile import trace_folder
from dew.training import pool, preemption
from dew.training.batch_fields import require_fields_of
from dew.training.checkpoints import Checkpoints
from dew.training.distributed import agree_process_phase, check_rows
from dew.training.optim.build import READS_AXES, build_optimizer
from dew.training.optim.matrices import axis_names
from dew.training.record import Changes, permitted_changes
from dew.training.run_lock import sole_trainer
from dew.training.runtime import prepare_process
from dew.training.trainer import Rollout, Trainer

if TYPE_CHECKING:
    from dew.config.run import RunConfig
    from dew.data.dataset import Dataset
    from dew.objectives.base import Metric, Objective
    from dew.telemetry.tracker import Tracker
    from dew.training.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers of a run over its dataset.

    Attributes:
        steps: attempted steps of the whole run.
        updates: optimizer updates of the whole run.
        eval_every: steps between validation passes, or None.
        checkpoint_every: steps between checkpoints, or None.
    """

    steps: int
    updates: int
    eval_every: int | None
    checkpoint_every: int | None


def with_ramp(config: RunConfig, dataset: Dataset) -> Dataset:
    """The dataset with the configuration's batch ramp.

    Raises:
        ValueError: the dataset has another ramp already, or data that cannot grow its batch.
    """
    ramp = config.trainer.batch_ramp
    if dataset.ramp == ramp:
        return dataset
    if dataset.ramp is not None or ramp is None:
        raise ValueError(
            f"the dataset was opened with ramp={dataset.ramp} and trainer.batch_ramp={ramp}; "
            "leave the dataset's to the configuration"
        )
    return dataset.ramped(ramp)


def plan_run(config: RunConfig, dataset: Dataset) -> Plan:
    """Resolve length and cadences.

    Data without a validation pass is not evaluated at the default cadence.

    Raises:
        ValueError: a dataset at another batch size, no length, a length below one update, a profile that
            would begin after the end, or a cadence that the data cannot serve.
    """
    trainer = config.trainer
    if dataset.batch != trainer.batch_size:
        raise ValueError(
            f"the dataset was opened at batch {dataset.batch} and trainer.batch_size={trainer.batch_size}; "
            f"load it with batch={trainer.batch_size}"
        )
    if dataset.records is not None and trainer.batch_size > dataset.records:
        raise ValueError(
            f"trainer.batch_size={trainer.batch_size} is more than the {dataset.records} training records; "
            f"use at most {dataset.records}, or more data"
        )
    steps = trainer.total_steps(dataset)
    if steps < trainer.accumulation:
        raise ValueError(
            f"a run of {steps} steps ends before its first update of "
            f"trainer.accumulation={trainer.accumulation} microbatches; train longer or accumulate less"
        )
    if dataset.val is None and isinstance(trainer.eval_every, int):
        told = "".join(f" ({line})" for line in dataset.description if line.startswith("val:"))
        raise ValueError(
            f"trainer.eval_every={trainer.eval_every}, but the dataset has no validation data{told}; "
            "set it to None or split some off"
        )
    if trainer.profile is not None and steps <= trainer.profile.warmup:
        raise ValueError(
            f"trainer.profile traces the steps after its warmup of {trainer.profile.warmup}, and the run has "
            f"{steps}; lower trainer.profile.warmup or train longer"
        )
    return Plan(
        steps=steps,
        updates=steps // trainer.accumulation,
        eval_every=None if dataset.val is None else trainer.eval_interval(dataset),
        checkpoint_every=trainer.checkpoint_interval(dataset),
    )


def launch(
    config: RunConfig,
    objective: Objective[Any, Any],
    dataset: Dataset,
    *,
    name: str,
    metrics: Sequence[Metric[Any]],
    summary: Mapping[str, object] | None,
    rollout: Rollout | None = None,
) -> TrainState:
    """Train, or go on with, the run called `name`. See `RunConfig.train`."""
    if config.lora is not None:
        from dew.lora.objective import adapted, merged_rollout

        objective = adapted(objective, config.lora)
        rollout = None if rollout is None else merged_rollout(rollout, config.lora)
    if config.trainer.quantization is not None:
        from dew.training.quantization import quantized

        if rollout is not None:
            raise ValueError(
                "trainer.quantization with a rollout: what is drawn comes from the model in full width, and "
                "the loss would score another; leave trainer.quantization unset"
            )
        objective = quantized(objective, config.trainer.quantization)
    account = TimeAccount(claimed_start())
    prepare_process(config.trainer)
    with pool.watched():
        return _launched(config, objective, dataset, name, metrics, summary, rollout, account)


def _launched(
    config: RunConfig,
    objective: Objective[Any, Any],
    dataset: Dataset,
    name: str,
    metrics: Sequence[Metric[Any]],
    summary: Mapping[str, object] | None,
    rollout: Rollout | None,
    account: TimeAccount,
) -> TrainState:
    dataset = with_ramp(config, dataset)
    plan = plan_run(config, dataset)
    if rollout is None:
        require_fields_of(objective, dataset)
    optimizer = optimizer_of(config, objective, updates=plan.updates)
    trainer_config = config.trainer
    directory = run_directory(trainer_config.checkpoint_dir, name)
    config = dataclasses.replace(config, trainer=dataclasses.replace(trainer_config, name=name))
    config.require_objective()
    trainer = Trainer(
        objective,
        optimizer,
        key=jax.random.key(trainer_config.seed),
        mesh=trainer_config.mesh,
        layout=trainer_config.layout,
        accumulation=trainer_config.accumulation,
        dynamic_scale=trainer_config.dynamic_scale,
        profile=trainer_config.profile,
        rollout=rollout,
    )
    # A mesh, a model or a layout that does not fit is refused before there is a folder.
    _ = trainer.described
    check_rows(dataset, trainer.mesh, trainer.mesh_spec)
    with sole_trainer(directory):
        checkpoints = Checkpoints(f"{directory}/checkpoints", keep=trainer_config.keep)
        latest = checkpoints.latest
        if latest is None:
            refuse_lost_checkpoints(directory)
        changes = admit(config, directory, resumes=latest is not None)
        if latest is not None and latest >= plan.steps:
            say_finished(directory, latest, plan.steps)
        directions = {metric.name: metric.higher_is_better for metric in metrics}
        facts = {
            **(summary or {}),
            "steps": plan.steps,
            "metrics": directions,
            **({"changed": changes} if changes else {}),
        }
        trainer.checkpoints, trainer.tracker = checkpoints, reporter(config, directory, facts)
        trainer.account, trainer.reached = account, reached(directory) if latest is not None else 0
        try:
            with preemption.watch():
                state = trainer.fit(
                    dataset,
                    steps=plan.steps,
                    log_every=trainer_config.log_every,
                    eval_every=plan.eval_every,
                    checkpoint_every=plan.checkpoint_every,
                    metrics=metrics if plan.eval_every else (),
                    preview=plan.eval_every is not None,
                )
        except preemption.Preempted:
            say(f"Go on with: {resume_command(config, directory)}")
            raise
    traced = traced_steps(config, plan.steps - (latest or 0))
    say("\n".join([f"The run is in {directory}", *next_commands(config, directory), *traced]))
    return state


def optimizer_of(
    config: RunConfig, objective: Objective[Any, Any], *, updates: int
) -> optax.GradientTransformation:
    """The run's optimizer, told what the axes of the objective's parameters are where it reads them.

    Raises:
        ValueError: muonclip for an objective that reports no attention logits.
    """
    if config.optim.optimizer == "muonclip" and not objective.reports_logits:
        raise ValueError(
            f"optim.optimizer='muonclip' clips by attention logits, and {type(objective).__name__} reports "
            "none; use 'muon'"
        )
    if config.optim.optimizer not in READS_AXES:
        return build_optimizer(config.optim, total_updates=updates)
    boxed = jax.eval_shape(objective.initializer, jax.random.key(config.trainer.seed))
    return build_optimizer(config.optim, total_updates=updates, axes=axis_names(boxed))


def say_finished(directory: str, latest: int, steps: int) -> None:
    """Tell that a run has nothing left to do."""
    reached = f"step {latest} of {steps}" if latest == steps else f"step {latest} is past it"
    say(f"{directory} is finished: {reached}. Raise trainer.steps={steps} to train on.")


def refuse_lost_checkpoints(directory: str) -> None:
    """Refuse to start from nothing where the journal tells of a checkpoint.

    Raises:
        ValueError: it does, and none is complete.
    """
    from dew.telemetry.history import read_journal

    try:
        saved = read_journal(directory).checkpoints
    except FileNotFoundError:
        return
    if saved:
        raise ValueError(
            f"{directory}/checkpoints holds no complete checkpoint, but the run's journal tells of one at "
            f"step {saved[-1].step}; put it back, or train under another trainer.name"
        )


def reached(directory: str) -> int:
    """The furthest step that the journal of an earlier process tells of; 0 where there is none to read."""
    from dew.telemetry.history import read_journal

    try:
        return max((life.last_step for life in read_journal(directory).lives), default=0)
    except FileNotFoundError:
        return 0


def admit(config: RunConfig, directory: str, *, resumes: bool) -> Changes:
    """Compare with the recorded run, then write this configuration as its record on process zero.

    A run without a checkpoint has computed nothing that counts, so its record is replaced whole.

    Returns:
        The recorded and the new value of every field that changed.
    """
    error: Exception | None = None
    changes: Changes = {}
    try:
        if resumes:
            changes = permitted_changes(directory, files.read_record(directory), config.to_dict())
    except (OSError, ValueError) as problem:
        error = problem
    agree_process_phase("the comparison with run.json", error)
    try:
        if jax.process_index() == 0:
            config.save(directory)
    except (OSError, ValueError, TypeError) as problem:
        error = problem
    agree_process_phase("writing run.json", error)
    return changes


def reporter(config: RunConfig, directory: str, facts: Mapping[str, object]) -> Tracker | None:
    """The trackers of a run, on process zero alone."""
    if jax.process_index() != 0:
        return None
    return open_tracker(directory, record=config.to_dict(), summary=facts, wandb=config.trainer.wandb)


def say(message: str) -> None:
    """Print on process zero."""
    if jax.process_index() == 0:
        print(message, flush=True)


def resume_command(config: RunConfig, directory: str) -> str:
    """How to go on with the run in `directory`: a command for a recipe's configuration, else a call."""
    from dew.registry import name_of

    try:
        recipe = name_of("recipe", type(config))
    except ValueError:
        return f"train(..., name={config.trainer.name!r}) with the same configuration"
    return f"dew train {recipe} --resume {shlex.quote(directory)}"


def next_commands(config: RunConfig, directory: str) -> list[str]:
    """The installed commands that read a finished run, one a line."""
    from dew.registry import commands, tasks

    place = shlex.quote(directory)
    lines: list[str] = []
    if "generate" in commands and config.objective is not None and config.objective in tasks:
        lines.append(" ".join(["  dew generate", place, *needed_words(tasks.config(config.objective))]))
    if "report" in commands:
        lines.append(f"  dew report {place}")
    return lines


def traced_steps(config: RunConfig, steps: int) -> list[str]:
    """The command that reads the trace of a process that ran `steps`, or why there is none; one line."""
    window = config.trainer.profile
    if window is None or steps <= 0:
        return []
    if steps <= window.warmup:
        return [f"No step was traced: {steps} ran, and trainer.profile.warmup={window.warmup}"]
    return [f"  dew profile {shlex.quote(trace_folder(window.directory))}"]


def needed_words(options: type[Any]) -> list[str]:
    """A placeholder for every word that a task's options take by place and have no default for."""
    if not dataclasses.is_dataclass(options):
        return []
    positional = getattr(options, "positional", ())
    return [
        '"..."'
        for field in dataclasses.fields(options)
        if field.name in positional
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
