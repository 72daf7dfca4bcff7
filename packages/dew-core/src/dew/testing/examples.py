"""How each kind of component is tried: a declared example, small enough for a test of seconds.

An example is declared under its component's kind and name; `ComponentContract` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.config import RunConfig
from dew.config.record import decode, encode
from dew.data.config import DatasetSpec
from dew.objectives.base import Step
from dew.registry import objectives, registry_of
from dew.testing.configs import ConfigContract
from dew.testing.datasets import DatasetContract
from dew.testing.metrics import MetricContract
from dew.testing.trials import Trial


@dataclass(frozen=True, kw_only=True)
class Example:
    """A component built from fields, and nothing else known of it.

    Attributes:
        fields: what the registry builds it from; values a record can hold.
    """

    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def part(self, kind: str, name: str) -> Any:
        """The component, built by its registered name."""
        return registry_of(kind).build(name, **self.fields)

    def trial(self, kind: str, name: str) -> Trial | None:
        """The component in use, or None where it is no function of arrays."""
        return None

    def check_record(self, kind: str, name: str, folder: Path) -> None:
        """The component comes back from its record, and twice the same from its fields.

        Args:
            kind, name: the component.
            folder: an empty folder for files.
        """
        part = self.part(kind, name)
        if getattr(type(part), "component_kind", None) == kind:
            record = encode(part, name)
            assert record["name"] == name and decode(type(part), record, name) == part
        assert type(self.part(kind, name)) is type(part)

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        """What is particular to the kind; see the subclasses."""


@dataclass(frozen=True, kw_only=True)
class FunctionExample(Example):
    """A component that makes a pure function.

    Attributes:
        function: from the built component to `function(held, rows)`.
        rows: the first so many rows of the arguments.
        held: from the built component to what is the same for all rows.
        rowwise: the result has a row for each.
    """

    function: Callable[[Any], Callable[[Any, Any], Any]]
    rows: Callable[[int], Any]
    held: Callable[[Any], Any] | None = None
    rowwise: bool = True

    def trial(self, kind: str, name: str) -> Trial:
        part = self.part(kind, name)
        held = None if self.held is None else self.held(part)
        return Trial(function=self.function(part), rows=self.rows, held=held, rowwise=self.rowwise)


@dataclass(frozen=True, kw_only=True)
class ModelExample(Example):
    """A Linen module.

    Attributes:
        inputs: its arguments by name, for the first so many rows.
        method: what is called.
    """

    inputs: Callable[[int], Mapping[str, Any]]
    method: str = "__call__"

    def trial(self, kind: str, name: str) -> Trial:
        module = self.part(kind, name)
        held = jax.jit(partial(module.init, method=self.method))(jax.random.key(0), **self.inputs(2))

        def function(variables: Any, rows: Mapping[str, Any]) -> Any:
            return module.apply(variables, **rows, method=self.method)

        return Trial(function=function, rows=self.inputs, held=held)

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        """Equal fields make equal modules; computing in bfloat16 leaves the parameters in float32."""
        assert self.part(kind, name) == self.part(kind, name)
        narrow = registry_of(kind).build(name, **{**self.fields, "dtype": "bfloat16"})
        shapes = jax.eval_shape(
            lambda: narrow.init(jax.random.key(0), **self.inputs(2), method=self.method)["params"]
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
            assert leaf.dtype == jnp.float32, f"{jax.tree_util.keystr(path)} is stored as {leaf.dtype}"


@dataclass(frozen=True, kw_only=True)
class ScheduleExample(Example):
    """A learning-rate schedule.

    Attributes:
        total_updates: length of the run.
    """

    total_updates: int = 16

    def trial(self, kind: str, name: str) -> Trial:
        schedule = self.part(kind, name).build(peak=1.0, total_updates=self.total_updates)
        return Trial(
            function=lambda _, updates: jax.vmap(schedule)(updates),
            rows=lambda rows: np.arange(rows, dtype=np.int32),
        )

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        """The rate stays between 0 and the peak, over the whole run."""
        schedule = self.part(kind, name).build(peak=0.5, total_updates=self.total_updates)
        rates = np.array([float(schedule(update)) for update in range(self.total_updates + 1)])
        assert (rates >= 0).all() and (rates <= 0.5 * (1 + 1e-6)).all(), rates


@dataclass(frozen=True, kw_only=True)
class ObjectiveExample(Example):
    """An objective, as its configuration builds it.

    Attributes:
        config: a small run.
        batch: the first so many rows of a batch.
    """

    config: Callable[[], RunConfig]
    batch: Callable[[int], Any]

    def part(self, kind: str, name: str) -> Any:
        return self.config().build()

    def trial(self, kind: str, name: str) -> Trial:
        objective = self.part(kind, name)
        held = {"variables": jax.jit(objective.initializer)(jax.random.key(0))}
        if objective.ema is not None:
            held["average"] = jax.jit(objective.initializer)(jax.random.key(1))

        def function(held: Mapping[str, Any], batch: Any) -> Any:
            step = Step(step=jnp.asarray(0), key=jax.random.key(2), ema=held.get("average"))
            stats, _ = objective.loss(held["variables"], batch, step)
            return objective.reduce_loss(stats)[0]

        return Trial(function=function, rows=self.batch, held=held, rowwise=False)

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        """The configuration is the one registered beside the objective, and builds that objective."""
        config = self.config()
        assert config.objective == name and type(config) is objectives.config(name)
        assert isinstance(config.build(), objectives.get(name))


@dataclass(frozen=True, kw_only=True)
class RecipeExample(Example):
    """A recipe: its configuration is tested as `ConfigContract` does.

    Attributes:
        config: a run that differs from the defaults.
    """

    config: Callable[[], RunConfig]

    def part(self, kind: str, name: str) -> Any:
        return self.config()

    def check_record(self, kind: str, name: str, folder: Path) -> None:
        assert type(self.config()) is registry_of(kind).config(name)

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        config = self.config

        class Contract(ConfigContract):
            def config(self) -> RunConfig:
                return config()

        run_contract(Contract())


@dataclass(frozen=True, kw_only=True)
class MetricExample(Example):
    """A metric, tested as `MetricContract` does.

    Attributes:
        artifacts: three or more, of different sizes.
        expected: the value of the whole pass; None tests order alone.
    """

    artifacts: Callable[[], list[Any]]
    expected: float | None = None

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        example, part = self, self.part(kind, name)

        class Contract(MetricContract):
            def metric(self) -> Any:
                return part

            def artifacts(self) -> list[Any]:
                return example.artifacts()

            def expected(self) -> float:
                known = example.expected
                return self.value(self.artifacts()) if known is None else known

        run_contract(Contract())
        assert part.name == name, f"metric {name!r} calls itself {part.name!r}"


@dataclass(frozen=True, kw_only=True)
class DatasetExample(Example):
    """A dataset, tested as `DatasetContract` does.

    Attributes:
        files: writes what it reads into an empty folder, and returns the fields that name it.
        tokenize: what `load` gets.
        rows: the global batch.
    """

    files: Callable[[Path], Mapping[str, Any]] | None = None
    tokenize: Callable[[], object] | None = None
    rows: int = 4

    def spec(self, kind: str, name: str, folder: Path) -> DatasetSpec:
        """The specification over the files in `folder`."""
        written = {} if self.files is None else self.files(folder)
        return registry_of(kind).build(name, **{**self.fields, **written})

    def check_record(self, kind: str, name: str, folder: Path) -> None:
        spec = self.spec(kind, name, folder)
        record = encode(spec, name)
        assert record["name"] == name and decode(type(spec), record, name) == spec

    def check_laws(self, kind: str, name: str, folder: Path) -> None:
        example, spec = self, self.spec(kind, name, folder)

        class Contract(DatasetContract):
            rows = example.rows

            def spec(self) -> DatasetSpec:
                return spec

            def tokenize(self) -> object:
                return None if example.tokenize is None else example.tokenize()

        run_contract(Contract())


def run_contract(contract: Any) -> None:
    """Every test of a contract, in this test."""
    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract, name)()
