"""Forward the events of a run to the plugins that listen."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pluggy

from dew.plugins.hooks import Run
from dew.plugins.loader import installed, one_line
from dew.telemetry.tracker import Tracker

LOGGER = logging.getLogger("dew.plugins")
HOOKS = (
    "dew_run_started",
    "dew_metrics_logged",
    "dew_evaluation_done",
    "dew_checkpoint_committed",
    "dew_run_finished",
)


class LifecycleTracker(Tracker):
    """Calls each listening plugin by itself; one that raises is reported once and then left out."""

    def __init__(self, run: Run, manager: pluggy.PluginManager) -> None:
        self.run = run
        self.manager = manager
        self.listeners = [name for name, module in manager.list_name_plugin() if listens(manager, module)]

    def tell(self, hook: str, **arguments: Any) -> None:
        """Call `hook` in every listener that has not failed yet."""
        for name in list(self.listeners):
            others = [module for other, module in self.manager.list_name_plugin() if other != name]
            try:
                self.manager.subset_hook_caller(hook, others)(run=self.run, **arguments)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.listeners.remove(name)
                LOGGER.warning(
                    "plugin %s: %s raised %s; it hears no more of this run", name, hook, one_line(error)
                )

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        self.tell("dew_run_started", step=step, total_steps=total_steps, unit=unit)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.tell("dew_metrics_logged", values=values, step=step)

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        self.tell("dew_evaluation_done", values=values, step=step)

    def checkpointed(self, path: str, *, step: int) -> None:
        self.tell("dew_checkpoint_committed", path=path, step=step)

    def finished(self, status: str, *, step: int) -> None:
        self.tell("dew_run_finished", status=status, step=step)


def listens(manager: pluggy.PluginManager, module: object) -> bool:
    """Whether a plugin implements a lifecycle hook."""
    callers = manager.get_hookcallers(module) or []
    return any(caller.name in HOOKS for caller in callers)


def lifecycle_tracker(directory: str = "", record: Mapping[str, object] | None = None) -> LifecycleTracker:
    """The tracker that tells the installed plugins about one run.

    Args:
        directory: the run directory.
        record: the configuration as `run.json` holds it.
    """
    return LifecycleTracker(Run(directory=directory, record=record or {}), installed().manager)
