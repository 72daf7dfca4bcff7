"""How long a run is, where it lives and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dew.config.cache import default_compilation_cache_dir
from dew.data.config import Ramp
from dew.telemetry.config import ProfileWindow
from dew.training.config import Layout, MeshSpec
from dew.training.quantization.config import Quantization

if TYPE_CHECKING:
    from dew.data.dataset import Dataset

type Cadence = int | Literal["epoch"] | None
"""Steps between two events: a number, `epoch` for one pass over the data, or None for never."""


@dataclass(frozen=True)
class Wandb:
    """Report to Weights & Biases besides the local journal.

    Attributes:
        project: project the run belongs to.
        entity: team or user; None is the account's default.
        offline: write locally, for `wandb sync` later.

    Raises:
        ValueError: an empty project.
    """

    project: str
    entity: str | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if not self.project:
            raise ValueError("wandb.project='' must name a project; leave wandb unset to report nowhere else")


@dataclass(frozen=True)
class TrainerConfig:
    """Run length, cadences, placement and process settings.

    Attributes:
        name: name of the run, its folder in `checkpoint_dir`; None makes a fresh one.
        checkpoint_dir: folder of runs.
        keep: latest checkpoints kept, besides the best.
        batch_size: records a step over all processes: the size of one microbatch.
        seed: seed of the run's key: initialisation and every draw of a step.
        steps: attempted steps of the whole run. Exactly one of `steps` and `epochs` is set.
        epochs: passes over the data instead.
        log_every: steps between log ticks.
        eval_every: steps between validation passes.
        checkpoint_every: steps between checkpoints; None where the data cannot report its position.
        accumulation: microbatches in one optimizer update.
        batch_ramp: grow the batch to `batch_size` over the first records; None trains at `batch_size`
            throughout. Steps and epochs keep their meaning, and the step compiles once for each size.
        dynamic_scale: scale the loss against float16 underflow.
        mesh: ways the run is split.
        layout: how arrays are laid over the mesh.
        profile: steps to trace.
        compilation_cache_dir: folder of compiled programs, so that a restart does not compile again; None
            compiles afresh.
        wandb: report to Weights & Biases besides the local journal.
        multi_host: join a pool of processes: None joins one if the environment describes it, True requires
            it, False never asks.
        xla_flags: appended to XLA_FLAGS before JAX opens a backend.
        quantization: train with quantized products.

    Raises:
        ValueError: a count below 1, both `steps` and `epochs`, a ramp that does not grow to `batch_size`, or
            a ramp with accumulation.
    """

    name: str | None = None
    checkpoint_dir: str = "./checkpoints"
    keep: int = 2
    batch_size: int = 32
    seed: int = 0
    steps: int | None = None
    epochs: int | None = None
    log_every: int = 100
    eval_every: Cadence = "epoch"
    checkpoint_every: Cadence = "epoch"
    accumulation: int = 1
    batch_ramp: Ramp | None = None
    dynamic_scale: bool = False
    mesh: MeshSpec = field(default_factory=MeshSpec)
    layout: Layout = field(default_factory=Layout)
    profile: ProfileWindow | None = None
    compilation_cache_dir: str | None = field(default_factory=default_compilation_cache_dir)
    wandb: Wandb | None = None
    multi_host: bool | None = None
    xla_flags: str | None = None
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        for name in ("keep", "batch_size", "steps", "epochs", "log_every", "accumulation"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"trainer.{name}={value} must be at least 1")
        if self.name == "":
            raise ValueError("trainer.name='' must name a folder; leave it unset for a fresh name")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"trainer.seed={self.seed} must fit 64 bits: from {-(2**63)} to {2**63 - 1}")
        for name in ("eval_every", "checkpoint_every"):
            cadence: Cadence = getattr(self, name)
            if isinstance(cadence, int) and cadence < 1:
                raise ValueError(
                    f"trainer.{name}={cadence} must be at least 1 step, 'epoch', or None for never"
                )
            if isinstance(cadence, str) and cadence != "epoch":
                raise ValueError(f"trainer.{name}={cadence!r} must be a number of steps, 'epoch' or None")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"trainer.steps={self.steps} and trainer.epochs={self.epochs} both set the run's length; "
                "keep one"
            )
        if self.batch_ramp is not None and self.accumulation > 1:
            raise ValueError(
                f"trainer.batch_ramp with trainer.accumulation={self.accumulation}: "
                "a ramp grows whole updates; use accumulation 1"
            )
        if self.batch_ramp is not None:
            self.batch_ramp.check(self.batch_size)

    def total_steps(self, dataset: Dataset) -> int:
        """The run's length in attempted steps.

        Raises:
            ValueError: neither `steps` nor `epochs` is set, or `epochs` over data of unknown length.
        """
        if self.steps is not None:
            return self.steps
        if self.epochs is None:
            raise ValueError(
                "the run has no length: set trainer.steps, or trainer.epochs for passes over the data"
            )
        if dataset.records is None:
            raise ValueError(
                f"trainer.epochs={self.epochs} needs data that knows its number of records; set trainer.steps"
            )
        return dataset.epoch_steps(self.epochs)

    def eval_interval(self, dataset: Dataset) -> int | None:
        """Steps between validation passes, or None for never.

        Raises:
            ValueError: `epoch` over data of unknown length.
        """
        return self._interval("eval_every", self.eval_every, dataset)

    def checkpoint_interval(self, dataset: Dataset) -> int | None:
        """Steps between checkpoints, or None for never.

        Raises:
            ValueError: `epoch` over data of unknown length.
        """
        return self._interval("checkpoint_every", self.checkpoint_every, dataset)

    def _interval(self, name: str, cadence: Cadence, dataset: Dataset) -> int | None:
        if cadence != "epoch":
            return cadence
        steps = dataset.steps_per_epoch
        if steps is None:
            raise ValueError(
                f"trainer.{name}='epoch' needs data that knows its number of records; "
                "give a number of steps or None"
            )
        return max(1, steps)
