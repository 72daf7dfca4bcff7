"""A short supervised start: steps of next-token training before a run, which teach a form and no answer.

The start is a part of the run: its settings stand in `run.json`, its draws follow from the run's seed, and a
run that has a checkpoint does not repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dew.data.config import IN_PROCESS

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int

    from dew.config import RunConfig, TrainerConfig
    from dew.data.dataset import Dataset
    from dew.objectives.base import Variables
    from dew.objectives.lm.decoder import Decoder

STEPS = 100
"""Of a start that nobody gave a length."""

STREAM = 0x57A27
"""Folded into the run's key for the start's own trainer."""


@dataclass(frozen=True)
class WarmStart:
    """How long and how fast the supervised start is.

    Attributes:
        steps: optimizer updates; 0 makes no start. Unset takes 100 where a run draws its weights and its data
            has a form to teach, and 0 elsewhere.
        batch_size: rows of an update.
        learning_rate: of Adam, falling to zero along half a cosine.

    Raises:
        ValueError: a negative number of steps, no row, or a rate that is not positive.
    """

    steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"warm_start.steps={self.steps} must be 0 or more; 0 starts from drawn weights")
        if self.batch_size < 1:
            raise ValueError(f"warm_start.batch_size={self.batch_size} must be at least 1")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"warm_start.learning_rate={self.learning_rate} must be above 0 and finite")

    @property
    def rows(self) -> int:
        """How many rows the start reads, each once."""
        return (self.steps or 0) * self.batch_size

    def settled(self, *, teaches: bool) -> WarmStart:
        """This start with its number of steps.

        Args:
            teaches: whether there is a form to teach and a model that does not know it.
        """
        return replace(self, steps=STEPS if teaches else 0) if self.steps is None else self

    def variables(
        self,
        model: Decoder,
        rows: Sequence[Sequence[int]] | Int[np.ndarray, "N S1"],
        trainer: TrainerConfig,
    ) -> Variables:
        """The model after `steps` updates on `rows`, on the host.

        Args:
            model: what the run trains.
            rows: the ids of each example, of any length; at least `self.rows` of them, read in their order.
            trainer: the run's seed and placement.

        Raises:
            ValueError: too few rows, no step, or a mesh that `batch_size` rows do not fit.
        """
        import jax
        import optax

        from dew.objectives.lm import LMObjective
        from dew.training import Trainer
        from dew.training.distributed import to_host

        if not self.steps or len(rows) < self.rows:
            raise ValueError(
                f"warm_start.steps={self.steps} of {self.batch_size} rows read {self.rows} examples, and "
                f"{len(rows)} are given; give as many"
            )
        width = max(map(len, rows))
        width += -(width - 1) % trainer.mesh.sequence  # filling, so that the axis cuts the positions evenly
        objective = LMObjective(model, width - 1, ema_decay=None, token_accuracy=False)
        rate = optax.cosine_decay_schedule(self.learning_rate, self.steps)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
        key = jax.random.fold_in(jax.random.key(trainer.seed), STREAM)
        fitted = Trainer(objective, optimizer, key=key, mesh=trainer.mesh, layout=trainer.layout).fit(
            _in_order(rows, self.batch_size, width), steps=self.steps, log_every=self.steps
        )
        return to_host(fitted.params)


def has_begun(config: RunConfig, name: str) -> bool:
    """Whether the run called `name` has a checkpoint to go on from."""
    from dew.config.names import run_directory
    from dew.training.checkpoints import Checkpoints

    directory = run_directory(config.trainer.checkpoint_dir, name)
    return Checkpoints(f"{directory}/checkpoints", keep=config.trainer.keep).latest is not None


def _in_order(rows: Sequence[Sequence[int]] | Int[np.ndarray, "N S1"], batch: int, width: int) -> Dataset:
    """`rows` filled to `width` ids, with a filling that is no document and no target."""
    import grain
    import numpy as np

    from dew.data.dataset import Dataset
    from dew.objectives.lm.batch import SEGMENTS_KEY, TEXT_KEY

    slots = np.arange(width)

    def record(row: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        ids = np.asarray([*row, *[0] * (width - len(row))], np.int32)
        return {TEXT_KEY: ids, SEGMENTS_KEY: (slots < len(row)).astype(np.int32)}

    source = grain.MapDataset.source([record(row) for row in rows])
    return Dataset.from_grain(source, batch=batch, loading=IN_PROCESS)
