"""What a run may change when it goes on: the comparison of its configuration with its `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.config.record import differences

FREE = (
    "trainer.name",
    "trainer.checkpoint_dir",
    "trainer.keep",
    "trainer.steps",
    "trainer.epochs",
    "trainer.log_every",
    "trainer.eval_every",
    "trainer.checkpoint_every",
    "trainer.mesh",
    "trainer.layout",
    "trainer.profile",
    "trainer.compilation_cache_dir",
    "trainer.wandb",
    "trainer.multi_host",
    "trainer.xla_flags",
    "data.loading",
)
"""The fields a run may change: length, cadences, trackers, placement, process settings and the loader's
concurrency. All others decide what is computed."""

type Changes = dict[str, tuple[Any, Any]]
"""Dotted field -> its recorded and its new value."""


def is_free(path: str) -> bool:
    """Whether the field at `path` may differ from the recorded one."""
    return any(path == name or path.startswith(name + ".") for name in FREE)


def permitted_changes(directory: str, recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> Changes:
    """The fields in which a run that goes on differs from its record.

    Args:
        directory: of the run, for the error.
        recorded: the content of its `run.json`.
        wanted: the record of the new configuration.

    Raises:
        ValueError: a field that decides what is computed differs; every such field is named with both values.
    """
    changes = differences(recorded, wanted)
    fixed = {path: values for path, values in changes.items() if not is_free(path)}
    if fixed:
        listed = "; ".join(f"{path} was {old!r}, now {new!r}" for path, (old, new) in fixed.items())
        raise ValueError(
            f"the run in {directory} was trained with another configuration: {listed}. "
            "Set the recorded values again, or give the new run another trainer.name"
        )
    return changes
