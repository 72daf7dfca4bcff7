"""The options of the recipe. Importing this module imports no JAX, so that help is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.data.config import DatasetSpec, Loading

if TYPE_CHECKING:
    from dew.data import Dataset
    from dew_example.learn import Regression


@dataclass(frozen=True, kw_only=True)
class NoisySine(DatasetSpec):
    """Points `(x, sin x + noise)`.

    Attributes:
        points: how many.
        noise: standard deviation of the noise.
    """

    loading: Loading = field(default_factory=lambda: Loading(workers=0, threads=0))
    points: int = 512
    noise: float = 0.1

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Draw the points, the same for the same seed, and keep the last eighth for validation."""
        from dew_example.learn import open_points

        return open_points(self, batch)


@dataclass(frozen=True)
class SineConfig(RunConfig):
    """Fit a small network to a noisy sine."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig("sine_mlp", dtype="float32"))
    data: DatasetSpec = field(default_factory=NoisySine)
    objective: str | None = "sine"

    @classmethod
    def starting_point(cls) -> Self:
        """What `dew train sine` starts from."""
        return cls(
            optim=OptimConfig(learning_rate=1e-2),
            trainer=TrainerConfig(steps=300, batch_size=64, log_every=50, eval_every=100),
        )

    def build(self, *, variables: Any = None) -> Regression:
        """The objective, from the start or from `variables`."""
        from dew_example.learn import Regression

        return Regression(self.model.build(), variables)
