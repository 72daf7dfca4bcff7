"""What a run's directory tells the image task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dew.objectives.diffusion import DiffusionObjective, DiffusionRunConfig
from dew.training.opening import named_dtype, opened_mesh
from dew.training.runs import load_run

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.training import Layout, MeshSpec


def open_run(
    directory: str | os.PathLike[str],
    *,
    ema: bool,
    step: int | None,
    mesh: Mesh | MeshSpec | None,
    layout: Layout | None,
    dtype: str | None,
    param_dtype: str | None,
) -> tuple[DiffusionObjective, Mapping[str, Any], Any]:
    """The objective of a run, its trained variables, and its model in the dtype that was asked for.

    The arguments are those of `TextToImage.from_run`.

    Raises:
        ValueError: the run trained something else, or its checkpoint is not what `run.json` describes.
        FileNotFoundError: no run or checkpoint there.
    """
    stores, computes = named_dtype("param_dtype", param_dtype), named_dtype("dtype", dtype)
    run = load_run(directory)
    objective = run.objective() if isinstance(run.config, DiffusionRunConfig) else None
    if not isinstance(objective, DiffusionObjective):
        raise ValueError(
            f"{run.directory} trained objective={run.config.objective!r}, which draws no images; open it "
            "with dew.pipeline"
        )
    variables = run.restore(
        step,
        ema=ema and objective.ema is not None,
        dtype=stores,
        mesh=opened_mesh(mesh),
        layout=layout,
        objective=objective,
    )
    model: Any = objective.model
    return objective, variables, model if computes is None else model.clone(dtype=computes)
