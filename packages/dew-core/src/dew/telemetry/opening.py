"""The trackers of a run, opened from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dew.telemetry.fanout import FanOut
from dew.telemetry.journal import JournalTracker
from dew.telemetry.progress import ProgressTracker
from dew.telemetry.tracker import Tracker

if TYPE_CHECKING:
    from dew.config.trainer import Wandb

REMOTE = "tracking"
"""Where the journals of runs in a bucket are kept: a folder of this name in the working directory."""


def open_tracker(
    directory: str,
    *,
    record: Mapping[str, object],
    summary: Mapping[str, object] | None = None,
    wandb: Wandb | None = None,
) -> Tracker:
    """The journal, the progress display, the plugins that listen and, where asked for, Weights & Biases.

    Nothing is written or contacted before the run starts.

    Args:
        directory: the run directory. A run in a bucket keeps its journal in `./tracking/<name>`, since a
            bucket takes no appends.
        record: the configuration as `run.json` holds it.
        summary: further facts of the run.
        wandb: where else it reports.

    Raises:
        ImportError: `wandb` is asked for and its package is not installed.
    """
    from dew.plugins import lifecycle_tracker

    trainer = record.get("trainer")
    named = trainer.get("name") if isinstance(trainer, Mapping) else None
    name = str(named or PurePosixPath(directory).name)
    local = f"{REMOTE}/{name}" if "://" in directory else directory
    trackers: list[Tracker] = [JournalTracker(local, record=record, summary=summary), ProgressTracker(name)]
    if wandb is not None:
        from dew.telemetry.weights_and_biases import WandbTracker

        trackers.append(WandbTracker(wandb, local, name=name, record=record, summary=summary))
    trackers.append(lifecycle_tracker(directory, record))
    return FanOut(trackers)
