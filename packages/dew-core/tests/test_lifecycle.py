"""Plugins hear of a run, each by itself."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pluggy
import pytest

from dew.plugins import Run, hookimpl, hooks
from dew.plugins.lifecycle import LifecycleTracker


def plugin(name: str, **functions: Any) -> ModuleType:
    """A plugin module with these hooks."""
    module = ModuleType(name)
    for hook, function in functions.items():
        function.__name__ = hook
        setattr(module, hook, hookimpl(function))
    return module


def tracker(*modules: ModuleType) -> LifecycleTracker:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    for module in modules:
        manager.register(module, name=module.__name__)
    return LifecycleTracker(Run(directory="runs/a", record={"objective": "toy"}), manager)


def test_every_event_reaches_its_hook_with_the_run():
    heard: list[Any] = []
    listener = plugin(
        "listener",
        dew_run_started=lambda run, step, total_steps, unit: heard.append(
            (run.directory, step, total_steps, unit)
        ),
        dew_metrics_logged=lambda values, step: heard.append((values, step)),
        dew_evaluation_done=lambda values: heard.append(values),
        dew_checkpoint_committed=lambda path: heard.append(path),
        dew_run_finished=lambda run, status: heard.append((run.record, status)),
    )
    told = tracker(listener)
    told.started(step=0, total_steps=9, unit="tokens")
    told.log({"train/loss": 1.0}, step=3)
    told.evaluated({"validation/perplexity": 4.0}, step=9)
    told.checkpointed("runs/a/checkpoints/9", step=9)
    told.finished("completed", step=9)
    assert heard == [
        ("runs/a", 0, 9, "tokens"),
        ({"train/loss": 1.0}, 3),
        {"validation/perplexity": 4.0},
        "runs/a/checkpoints/9",
        ({"objective": "toy"}, "completed"),
    ]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), SystemExit(3)])
def test_plugin_that_raises_is_reported_once_and_the_other_still_hears(
    failure: BaseException, caplog: pytest.LogCaptureFixture
):
    calls: list[str] = []

    def fail(step: int) -> None:
        calls.append("bad")
        raise failure

    bad = plugin("bad", dew_metrics_logged=fail)
    good = plugin("good", dew_metrics_logged=lambda step: calls.append(f"good {step}"))
    told = tracker(bad, good)
    for step in (1, 2):
        told.log({}, step=step)
    assert sorted(calls) == ["bad", "good 1", "good 2"]
    assert len(caplog.records) == 1
    assert "plugin bad: dew_metrics_logged raised" in caplog.text


def test_interrupt_inside_a_hook_stops_the_run():
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tracker(plugin("stop", dew_metrics_logged=interrupt)).log({}, step=1)
