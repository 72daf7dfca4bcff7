"""Where a run's emergency copies lie: on a disk of this machine, in a folder that belongs to this run alone.

The run's checkpoint directory holds an identity drawn when the first copy is made. The copies of a directory
that was emptied since, or of another run, have another identity, and nothing resumes from them.
"""

from __future__ import annotations

import os
import uuid

import jax

from dew.training.checkpoint_errors import CheckpointError
from dew.training.step_folders import absolute
from dew.training.step_store import StepStore

IDENTITY = "local_copies"
"""The file in a checkpoint directory that names its copies' folder."""


def local_store(local_directory: str, directory: str, *, create: bool) -> StepStore | None:
    """The copies in `local_directory` of the run whose checkpoints are in `directory`.

    Args:
        local_directory: of any number of runs.
        directory: absolute.
        create: give the run an identity where it has none; else the answer is None.

    Raises:
        NotImplementedError: several processes.
        CheckpointError: the identity cannot be written.
    """
    if jax.process_count() > 1:
        raise NotImplementedError(
            f"local_directory={local_directory!r} with {jax.process_count()} processes: emergency copies of "
            "a state that several machines hold are not built yet; leave local_directory and local_every out"
        )
    try:
        name = _identity(directory, create=create)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be kept in {directory}: {error}; choose a folder that can be written to"
        ) from error
    return None if name is None else StepStore(f"{absolute(local_directory)}/{name}", keep=1)


def _identity(directory: str, *, create: bool) -> str | None:
    from etils import epath

    path = epath.Path(directory) / IDENTITY
    name = path.read_text() if path.exists() else ""
    if name or not create:
        return name or None
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"dew-{uuid.uuid4().hex}"
    partial = path.with_name(f"{IDENTITY}.{os.getpid()}")
    partial.write_text(name)
    partial.replace(path)
    return name
