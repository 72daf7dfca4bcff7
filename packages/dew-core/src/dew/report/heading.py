"""The head of a report: what the run is, what became of it, and its key figures."""

from __future__ import annotations

import math

from dew.report.curves import median, title, with_references
from dew.report.markup import escape
from dew.report.series import nonfinite_steps, smooth
from dew.report.tables import moment
from dew.telemetry.account import goodput
from dew.telemetry.amounts import ago, duration, number, rate
from dew.telemetry.history import Points, RunHistory


def heading(history: RunHistory, name: str, now: float) -> str:
    """Name, status, progress and figures."""
    objective = history.record.get("objective")
    kind = f'<p class="kind">{escape(str(objective))}</p>' if objective else ""
    return (
        f'<header>{kind}<div class="name"><h1>{escape(name)}</h1>'
        f'<span class="status {history.status}">{status_word(history)}</span></div>'
        f"<p>{escape(sentence(history, now))}</p>{progress(history)}</header>"
        f"{notices(history)}{figures(history)}"
    )


def status_word(history: RunHistory) -> str:
    """The status as a word."""
    return {"empty": "not started", "completed": "finished"}.get(history.status, history.status)


def sentence(history: RunHistory, now: float) -> str:
    """How far the run is and when it was last heard of."""
    if history.updated is None:
        return "This run has written nothing but its configuration yet."
    steps = f"{history.step:,} of {history.total_steps:,} steps"
    heard = f"{moment(history.updated)} ({ago(now - history.updated)})"
    if history.status == "running":
        return f"{steps}; last heard of {heard}, running for {duration(history.wall_s)}."
    return f"{steps} in {duration(history.wall_s)}; ended {heard}."


def progress(history: RunHistory) -> str:
    """A bar of the steps done, except where all are."""
    if not history.total_steps or history.status in ("completed", "empty"):
        return ""
    done = min(100.0, 100 * history.step / history.total_steps)
    bar = f'<i style="width:{done:.1f}%"></i>'
    return f'<div class="done" role="img" aria-label="{done:.0f} percent">{bar}</div>'


def notices(history: RunHistory) -> str:
    """What a reader has to know before the curves: values that were no numbers, trackers that failed."""
    messages: list[str] = []
    for name, points in {**history.metrics, **history.validation}.items():
        steps = nonfinite_steps(points)
        if steps:
            messages.append(
                f"{title(name)} was not finite at {len(steps):,} of {len(points):,} logged steps, "
                f"first at step {steps[0]:,} (red marks)"
            )
    messages += [f"step {step:,}: {message}" for step, message in history.notices]
    if history.damaged:
        messages.append(f"{history.damaged} lines of the journal are damaged and left out")
    return "".join(f'<p class="notice">{escape(message)}</p>' for message in messages)


def figures(history: RunHistory) -> str:
    """The figures to quote."""
    if not history.lives:
        return ""
    cards = [
        (f"validation {title(name)}", number(list(points.values())[-1]), reach(points))
        for name in with_references(list(history.validation))
        if (points := history.validation[name])
    ][:4]
    loss = smooth(list(history.metrics.get("train/loss", {}).items()))
    if loss:
        cards.append(("training loss", number(loss[-1][1]), "smoothed, at the last log"))
    speed = median(history.metrics.get(f"train/{history.unit}_per_second", {}))
    if math.isfinite(speed):
        cards.append((f"{history.unit} per second", rate(speed), "median of the log"))
    if history.seconds:
        use = median(history.metrics.get("performance/mfu", {}))
        shown = f"MFU {use:.0%}" if math.isfinite(use) else "of the wall time in steps"
        cards.append(("goodput", f"{goodput(history.seconds):.0%}", shown))
    cards.append(("steps", f"{history.step:,}", f"of {history.total_steps:,}"))
    processes = len(history.lives)
    stretch = "one process" if processes == 1 else f"{processes} processes"
    cards.append(("wall time", duration(history.wall_s), stretch))
    items = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd><small>{escape(more)}</small></div>"
        for what, value, more in cards
    )
    return f'<dl class="figures">{items}</dl>'


def reach(points: Points) -> str:
    """The range validation has gone through."""
    values = [value for value in points.values() if math.isfinite(value)]
    if len(values) < 2:
        return "one pass"
    return f"from {number(values[0])} in {len(points)} passes"
