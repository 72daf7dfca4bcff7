"""What a run over pipeline stages asks of its objective, checked before any work, and its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dew.nn.pipeline import pipelined
from dew.objectives.base import Batch, Objective, Variables, thaw
from dew.training.config import MeshSpec
from dew.training.state import TrainState


def check_layers(objective: Objective[Any, Any], mesh: MeshSpec) -> None:
    """Refuse stages for an objective that names no layers, or layers that the stages cannot hold alike.

    Raises:
        ValueError: naming what works.
    """
    if mesh.stage == 1:
        return
    sites = objective.bank_sites
    if not sites:
        raise ValueError(
            f"mesh.stage={mesh.stage} splits layers over a pipeline, and {type(objective).__name__} has "
            "none that can pass over stages (its bank_sites are empty); use mesh.stage=1 with mesh.fsdp, "
            "mesh.tensor or data parallelism"
        )
    for site in sites:
        site.view.check_stages(mesh.stage)


def check_stages(objective: Objective[Any, Any], variables: Variables, mesh: MeshSpec) -> None:
    """Refuse variables whose layers are not alike in the same place of every stage.

    Args:
        objective: names the layers.
        variables: shapes of the complete tree.
        mesh: of the run.

    Raises:
        ValueError: naming the two layers.
    """
    if mesh.stage == 1:
        return
    whole = thaw(variables)
    for site in objective.bank_sites:
        for collection in whole.values():
            held: Any = collection
            for name in site.namespace:
                held = held.get(name, {}) if isinstance(held, Mapping) else {}
            if isinstance(held, Mapping):
                site.view.check_alike(held, mesh.stage)


def staged[T](step: Callable[[TrainState, Batch], T], mesh: MeshSpec) -> Callable[[TrainState, Batch], T]:
    """`step`, or a part of it, traced so that layers pass over the stages of `mesh`."""
    if mesh.stage == 1:
        return step

    def over_stages(state: TrainState, batch: Batch) -> T:
        with pipelined(mesh.microbatches):
            return step(state, batch)

    return over_stages
