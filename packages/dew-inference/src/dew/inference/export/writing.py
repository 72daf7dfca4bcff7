"""`export_run`: open a run as its task and hand it to the writer of its model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dew.config.files import read_record
from dew.inference.export.place import new_folder
from dew.inference.tasks.opening import pipeline, recorded_objective
from dew.plugins.known import SHIPPED_BY
from dew.registry import registry_of, writers

type Part = Literal["model", "adapter", "base"]
"""What of a run is written: its model, or of one that trained a low-rank adapter the adapter or its base."""

PARTS: tuple[Part, ...] = get_args(Part.__value__)

if TYPE_CHECKING:
    from dew.registry import DtypeName


def export_run(
    run_dir: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    ema: bool = True,
    step: int | None = None,
    dtype: DtypeName | None = None,
    part: Part = "model",
) -> Path:
    """Write the model of the run in `run_dir` into the new folder `destination`.

    The folder appears whole or not at all: it is filled under another name beside its place and then renamed.

    Args:
        run_dir: the run's folder.
        destination: missing or empty.
        ema: take the averaged weights where the run keeps an average; False takes the live ones.
        step: the checkpoint; None takes the newest.
        dtype: stores the tensors; None keeps what the run stored.
        part: of a run that trained a low-rank adapter, `adapter` writes the adapter alone in PEFT's layout,
            and `base` the model it was trained beside; `model` writes the merged one.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no run or no checkpoint there.
        FileExistsError: `destination` holds something.
        ValueError: a model without a published layout, by its name or by the field that no layout has; or a
            part of a run that trained no adapter.
    """
    directory = os.fspath(run_dir)
    if part not in PARTS:
        raise ValueError(f"part={part!r} must be {', '.join(PARTS)}")
    if part == "adapter":
        write = writer_for(directory, "adapter_writer")
        with new_folder(destination) as folder:
            write(directory, folder, ema=ema, step=step, dtype=dtype)
        return Path(destination)
    writer = writer_for(directory)
    with new_folder(destination) as folder:
        task = pipeline(directory, ema=ema, step=step, param_dtype=dtype)
        writer(task if part == "model" else task.bind(base_of(directory, step, dtype)), folder)
    return Path(destination)


def base_of(directory: str, step: int | None, dtype: DtypeName | None) -> Any:
    """The variables that an adapter run's factors were trained beside.

    Raises:
        ValueError: the run trained no adapter.
    """
    from dew.lora import without_factors
    from dew.training.runs import load_run

    return without_factors(load_run(directory).restore(step, ema=False, dtype=dtype, adapter=True))


def writer_for(directory: str, kind: str = "writer") -> Any:
    """The writer of the model that the run in `directory` trained: a function of its task and a folder.

    Args:
        directory: of the run.
        kind: `writer`, or `adapter_writer` for a function of the directory and a folder.

    Raises:
        FileNotFoundError: no run there.
        ValueError: nothing publishes such a model, or the package that does is not installed.
    """
    objective = recorded_objective(directory)
    model = read_record(directory).get("model")
    name = model.get("architecture") if isinstance(model, dict) else None
    registry = registry_of(kind)
    if isinstance(name, str) and (name in registry or (kind, name) in SHIPPED_BY):
        return registry.get(name)
    known = ", ".join(writers.names()) or "none of what is installed"
    raise ValueError(
        f"{directory} trained the model {name!r} (objective {objective!r}), which has no published "
        f"layout; models that have one: {known}"
    )
