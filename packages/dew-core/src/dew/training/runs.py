"""A run read back from its directory: its configuration, its objective and its trained variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dew.config import files
from dew.config.names import run_directory
from dew.lora.factors import merged
from dew.lora.objective import adapted
from dew.objectives.base import Objective, Variables, merge, select, thaw
from dew.training.checkpoints import Checkpoints
from dew.training.compare import differences, refuse_differences
from dew.training.config import Layout
from dew.training.layout import check_replication, tree_shardings, unboxed
from dew.training.placement import described, holds
from dew.training.positions import fingerprint_in
from dew.training.widths import inexact

if TYPE_CHECKING:
    from dew.config.run import RunConfig


@dataclass(frozen=True)
class Run:
    """One run directory.

    Attributes:
        directory: the folder with `run.json` and `checkpoints`.
        config: the configuration, as the class its objective registers; files the run keeps copies of are
            named as the copies.
        record: `run.json` as it stands.
    """

    directory: str
    config: RunConfig
    record: Mapping[str, Any]

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints, for reading."""
        return Checkpoints(f"{self.directory}/checkpoints", keep=self.config.trainer.keep)

    def objective(self) -> Objective[Any, Any]:
        """The objective this run trains, built anew."""
        return self.config.rebuilt().build()

    def has_average(self, step: int | None = None) -> bool:
        """Whether the checkpoint of `step`, default the latest, holds a moving average."""
        return "ema" in self.checkpoints.stored(step)

    def data_fingerprint(self, step: int | None = None) -> Mapping[str, Any]:
        """What identified the training data at the checkpoint of `step`, default the latest.

        Empty where the data reported no position.
        """
        return fingerprint_in(self.checkpoints.record(step)["positions"])

    def restore(
        self,
        step: int | None = None,
        *,
        ema: bool = True,
        dtype: Any = None,
        mesh: Mesh | None = None,
        layout: Layout | None = None,
        objective: Objective[Any, Any] | None = None,
        adapter: bool = False,
    ) -> Variables:
        """The trained variables, read to where they are used; the optimizer's state is not read.

        A run that trained a low-rank adapter is restored as the plain model, deltas added to their kernels.

        Args:
            step: default the latest complete checkpoint.
            ema: lay the averaged leaves over the live ones.
            dtype: storage of the floating leaves; None keeps the stored dtypes.
            mesh: where they lie; None is JAX's default device.
            layout: how they are split over `mesh`; default `Layout()`.
            objective: the run's objective where the caller has built it already.
            adapter: leave a low-rank adapter's factors beside its base's kernels.

        Raises:
            FileNotFoundError: the run has no complete checkpoint of that step.
            ValueError: the checkpoint does not hold the configured model, no average although `ema` is
                True, or no adapter although `adapter` is True.
        """
        if ema and not self.has_average(step):
            raise ValueError(
                f"{self.directory} keeps no moving average; restore the live weights with ema=False"
            )
        lora = self.config.lora
        if adapter and lora is None:
            raise ValueError(f"{self.directory} trained the whole model (lora=None), so it has no adapter")
        objective = self.objective() if objective is None else objective
        template = self._template(objective if lora is None else adapted(objective, lora), mesh, layout)
        stored = self.checkpoints.stored(step)
        refuse_differences(differences(template, stored["params"]), self.directory)
        wanted = {"params": template}
        if ema:
            averaged = select(template, lambda path: holds(stored["ema"], path))
            wanted["ema"] = jax.tree.map(_in_dtype_of, averaged, stored["ema"])
        state, _ = self.checkpoints.restore(wanted, step)
        variables: Variables = merge(state["params"], state["ema"]) if ema else state["params"]
        if lora is not None:
            variables = thaw(variables) if adapter else merged(variables, lora)
        return variables if dtype is None else _converted(variables, jnp.dtype(dtype))

    def _template(self, objective: Objective[Any, Any], mesh: Mesh | None, layout: Layout | None) -> Any:
        key = jax.eval_shape(lambda: jax.random.key(0))
        boxed = jax.eval_shape(objective.initializer, key)
        shapes = unboxed(boxed)
        if mesh is None:
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            return described(shapes, jax.tree.map(lambda _: device, shapes))
        chosen = layout or Layout()
        shardings = tree_shardings(chosen, mesh, boxed)
        check_replication(chosen, shapes["params"], shardings["params"], mesh)
        return described(shapes, shardings)


def has_checkpoint(config: RunConfig, name: str) -> bool:
    """Whether the run called `name` has a complete checkpoint to go on from."""
    directory = run_directory(config.trainer.checkpoint_dir, name)
    return Checkpoints(f"{directory}/checkpoints", keep=config.trainer.keep).latest is not None


def load_run(directory: str | os.PathLike[str]) -> Run:
    """Read `run.json` in `directory` and rebuild its configuration as the class its objective registers.

    Raises:
        FileNotFoundError: there is no `run.json`.
        ValueError: it names no objective, one that no installed package registers, or fields its class lacks.
    """
    from dew.registry import objectives

    folder = os.fspath(directory)
    record = files.read_record(folder)
    name = record.get("objective")
    if not isinstance(name, str):
        raise ValueError(
            f"{folder}/run.json names no objective (it has {name!r}), so nothing says how to rebuild the run"
        )
    config_class: type[RunConfig] = objectives.config(name)
    return Run(directory=folder, config=config_class.from_dict(record).opened(folder), record=record)


def _in_dtype_of(leaf: Any, stored: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, stored.dtype, sharding=leaf.sharding)


def _converted(variables: Variables, dtype: Any) -> Variables:
    def convert(leaf: Any) -> Any:
        return leaf.astype(dtype) if inexact(leaf) else leaf

    return jax.tree.map(convert, variables)
