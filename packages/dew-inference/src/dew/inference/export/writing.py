"""`export_run`: open a run as its task and hand it to the writer of its model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.config.files import read_record
from dew.inference.export.place import new_folder
from dew.inference.tasks.opening import pipeline, recorded_objective
from dew.plugins.known import SHIPPED_BY
from dew.registry import writers

if TYPE_CHECKING:
    from dew.registry import DtypeName


def export_run(
    run_dir: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    ema: bool = True,
    step: int | None = None,
    dtype: DtypeName | None = None,
) -> Path:
    """Write the model of the run in `run_dir` into the new folder `destination`.

    The folder appears whole or not at all: it is filled under another name beside its place and then renamed.

    Args:
        run_dir: the run's folder.
        destination: missing or empty.
        ema: take the averaged weights where the run keeps an average; False takes the live ones.
        step: the checkpoint; None takes the newest.
        dtype: stores the tensors; None keeps what the run stored.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no run or no checkpoint there.
        FileExistsError: `destination` holds something.
        ValueError: a model without a published layout, by its name or by the field that no layout has.
    """
    directory = os.fspath(run_dir)
    writer = writer_for(directory)
    with new_folder(destination) as folder:
        writer(pipeline(directory, ema=ema, step=step, param_dtype=dtype), folder)
    return Path(destination)


def writer_for(directory: str) -> Any:
    """The writer of the model that the run in `directory` trained: a function of its task and a folder.

    Raises:
        FileNotFoundError: no run there.
        ValueError: nothing publishes such a model, or the package that does is not installed.
    """
    objective = recorded_objective(directory)
    model = read_record(directory).get("model")
    name = model.get("architecture") if isinstance(model, dict) else None
    if isinstance(name, str) and (name in writers or ("writer", name) in SHIPPED_BY):
        return writers.get(name)
    known = ", ".join(writers.names()) or "none of what is installed"
    raise ValueError(
        f"{directory} trained the model {name!r} (objective {objective!r}), which has no published "
        f"layout; models that have one: {known}"
    )
