"""The whole configuration of a run, its record on disk, and the entry to training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from dew.config import files
from dew.config.arguments import JSON
from dew.config.model import ModelConfig
from dew.config.names import fresh_name
from dew.config.optim import OptimConfig
from dew.config.record import fields_record, from_fields
from dew.config.trainer import TrainerConfig
from dew.config.unbuilt import refuse_unbuilt
from dew.data.config import DatasetSpec
from dew.lora.config import LoRA
from dew.registry import datasets

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.objectives.base import Metric, Objective, Variables
    from dew.training.state import TrainState
    from dew.training.trainer import Rollout

DataSpec = DatasetSpec
"""The type of a configuration's `data`: any registered dataset's specification."""

DEFAULT_DATASET = "oxford_flowers102"


def default_data() -> DatasetSpec:
    """The default dataset of a plain run, which another distribution ships.

    Raises:
        UnknownComponent: that distribution is not installed; the message names it.
    """
    return cast("DatasetSpec", datasets.config(DEFAULT_DATASET)())


@dataclass(frozen=True)
class RunConfig:
    """Everything that describes a run. A family subclasses it with its objective's fields and `build`.

    Attributes:
        model: what is trained.
        data: what it is trained on.
        optim: how its parameters move.
        trainer: how the run goes.
        objective: registered name of the objective, by which a saved run finds its class again.
        lora: train a low-rank adapter in place of the whole model.

    Raises:
        ValueError: a setting that this version does not support.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataSpec = field(default_factory=default_data)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: str | None = None
    lora: LoRA | None = None

    def __post_init__(self) -> None:
        refuse_unbuilt(self)

    @classmethod
    def starting_point(cls) -> Self:
        """The instance that `dew train` starts from; a family overrides it with settings for a laptop."""
        return cls()

    def build(self, *, variables: Variables | None = None) -> Objective[Any, Any]:
        """The objective this configuration describes.

        Args:
            variables: start from this complete tree.
        """
        raise TypeError(
            f"{type(self).__name__} builds no objective; use the configuration class of a family, or pass an "
            "objective of your own to train"
        )

    def rebuilt(self) -> Self:
        """This configuration for weights that a checkpoint holds.

        A family whose `build` reads what only a start needs (published weights, say) leaves that out here.
        """
        return self

    def opened(self, directory: str) -> Self:
        """This configuration for what reads the run in `directory`, of which it is the record.

        A family whose runs keep copies of files that training read (a tokenizer, say) names the copies here.
        """
        return self

    def run_name(self, recipe: str) -> str:
        """`trainer.name`, or a fresh name that begins with `recipe`.

        Raises:
            ValueError: no name in a pool of processes, each of which would make another.
        """
        import jax

        if self.trainer.name is None and jax.distributed.is_initialized():
            raise ValueError("trainer.name=None; set it, since several processes train one run")
        return self.trainer.name or fresh_name(self.trainer.checkpoint_dir, recipe)

    def to_dict(self) -> dict[str, JSON]:
        """This configuration as JSON; a registered member is its name and its fields."""
        return fields_record(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Undo `to_dict`.

        Raises:
            ValueError: an unknown, missing or ill-typed field, by its path.
        """
        return from_fields(cls, values)

    def save(self, directory: str) -> str:
        """Write `run.json` into `directory`, which may be a bucket's address, and return its path.

        Raises:
            ValueError: no `objective`, so that nothing could find this class again.
        """
        self.require_objective()
        return files.write_record(directory, self.to_dict())

    def require_objective(self) -> None:
        """Refuse to be recorded without a name that finds this class again.

        Raises:
            ValueError: `objective` is None.
        """
        if self.objective is None:
            raise ValueError(
                "objective=None cannot be saved: a run is rebuilt by its objective's name; "
                f"set {type(self).__name__}.objective"
            )

    @classmethod
    def load(cls, directory: str) -> Self:
        """Read the `run.json` of a run as this class.

        Raises:
            FileNotFoundError: the folder holds none.
            ValueError: it does not fit this class.
        """
        return cls.from_dict(files.read_record(directory))

    def train(
        self,
        objective: Objective[Any, Any],
        dataset: Dataset,
        *,
        name: str,
        metrics: Sequence[Metric[Any]] = (),
        summary: Mapping[str, object] | None = None,
        rollout: Rollout | None = None,
    ) -> TrainState:
        """Train `objective` on `dataset` as this configuration says, or go on with the run called `name`.

        Args:
            objective: what is learned.
            dataset: opened at `trainer.batch_size`.
            name: the run's folder in `trainer.checkpoint_dir`.
            metrics: what validation computes; the best checkpoint follows the first.
            summary: further facts for the trackers.
            rollout: makes the arrays a step trains on from each batch, on the host.

        Returns:
            The state after the last step. A run that had already got there does no work.

        Raises:
            ValueError: a dataset at another batch size, no length, or a recorded run that differs in more
                than its length, cadences, trackers, placement and process settings.
            Preempted: a signal stopped the run after a checkpoint.
        """
        from dew.training.launch import launch

        return launch(self, objective, dataset, name=name, metrics=metrics, summary=summary, rollout=rollout)
