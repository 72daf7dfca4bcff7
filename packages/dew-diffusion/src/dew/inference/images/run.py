"""What a run's directory tells the image task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dew.objectives.diffusion import DiffusionObjective, DiffusionRunConfig
from dew.training.runs import load_run

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.training import Layout, MeshSpec

STORES = ("float32", "bfloat16", "float16")
"""The dtypes that a run can be opened in."""


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


def named_dtype(field: str, name: str | None) -> jnp.dtype | None:
    """The dtype called `name`; None for None and "auto", which keep what is stored.

    Raises:
        ValueError: it is none that a run can be opened in.
    """
    if name is None or name == "auto":
        return None
    if name not in STORES:
        raise ValueError(f"{field}={name!r} must be {', '.join(STORES)} or auto")
    return jnp.dtype(name)


def opened_mesh(mesh: Mesh | MeshSpec | None) -> Mesh | None:
    """The devices that a mesh's specification stands for."""
    if mesh is None or isinstance(mesh, jax.sharding.Mesh):
        return mesh
    from dew.training import build_mesh

    return build_mesh(mesh)
