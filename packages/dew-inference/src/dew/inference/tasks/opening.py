"""`pipeline`: from a source to its task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from dew.config.files import read_record
from dew.inference.tasks.published import is_published, open_published
from dew.plugins import Component
from dew.plugins.known import SHIPPED_BY
from dew.registry import objectives, tasks

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.objectives.base import Task
    from dew.registry import DtypeName
    from dew.training import Layout, MeshSpec


def pipeline(
    source: str | os.PathLike[str],
    *,
    mesh: Mesh | MeshSpec | None = None,
    layout: Layout | None = None,
    dtype: DtypeName | Literal["auto"] | None = None,
    param_dtype: DtypeName | Literal["auto"] | None = None,
    ema: bool = True,
    step: int | None = None,
    revision: str | None = None,
) -> Task:
    """The task of a trained run, picked by the objective that its `run.json` names, or of a published model.

    Args:
        source: the folder of either, or the name of a repository of the Hugging Face Hub that holds one. A
            folder of that name comes first.
        mesh: the devices; None is the first device alone.
        layout: where parameters stand on `mesh`.
        dtype: computes; None keeps a run's and is float32 for a published model, "auto" keeps the stored one.
        param_dtype: stores, likewise.
        ema: a run's averaged weights; False takes the live ones.
        step: a run's checkpoint; None takes the newest.
        revision: branch, tag or commit of a repository; None is its main branch.

    Raises:
        FileNotFoundError: `source` is neither a folder of either kind nor a repository.
        ImportError: a repository is named, and huggingface-hub is not installed.
        ValueError: the objective's family is not installed or has no task, or an argument it refuses.

    Example:
        >>> task = dew.pipeline("runs/lm-20261129-120000")
        >>> task("def ", 64, seed=0).text
    """
    directory = placed(source, revision)
    if is_published(directory):
        of_runs = {"mesh": mesh, "layout": layout, "step": step, "ema": None if ema else False}
        return open_published(directory, dtype=dtype, param_dtype=param_dtype, **of_runs)
    task: Any = tasks.get(task_component(directory).name)
    return task.from_run(
        directory, mesh=mesh, layout=layout, dtype=dtype, param_dtype=param_dtype, ema=ema, step=step
    )


def placed(source: str | os.PathLike[str], revision: str | None) -> str:
    """The folder or the address that `source` is, or the folder fetched for the repository it names."""
    from dew.interop.pretrained import located

    directory = os.fspath(source)
    return directory if "://" in directory and revision is None else os.fspath(located(source, revision))


def task_component(directory: str) -> Component:
    """The task that the family of the run in `directory` registers under its objective's name.

    Raises:
        FileNotFoundError: no run there.
        ValueError: the objective has no task, or is not installed.
    """
    name = recorded_objective(directory)
    if name in objectives and name not in tasks and ("task", name) not in SHIPPED_BY:
        known = ", ".join(tasks.names()) or "none"
        raise ValueError(
            f"{directory} trained objective={name!r}, for which no task is registered, so there is nothing "
            f"to open it as; objectives with a task here: {known}"
        )
    return tasks.component(name)


def recorded_objective(directory: str) -> str:
    """The name of the objective that the run in `directory` trained.

    Raises:
        FileNotFoundError: no `run.json` there.
        ValueError: it names no objective.
    """
    if "://" not in directory and not os.path.isdir(directory):
        raise FileNotFoundError(
            f"{directory} is no folder here; give a run's folder, which holds run.json "
            "(dew.interop.load_pretrained reads a model of the Hugging Face Hub)"
        )
    record = read_record(directory)
    name = record.get("objective")
    if not isinstance(name, str):
        raise ValueError(
            f"{os.path.join(directory, 'run.json')} names objective={name!r}; it must name the objective "
            "that was trained"
        )
    return name
