"""How a run used its time and its devices: the account of its processes, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dew.report.chart import chart
from dew.report.curves import SMALL_POINTS, last, logged_span, median, short, title, trend
from dew.report.tables import pairs, table
from dew.telemetry.account import CATEGORIES, goodput
from dew.telemetry.amounts import duration, number, rate, size
from dew.telemetry.cost import CONVENTION
from dew.telemetry.history import RunHistory

PREFIX = "performance/"
DRAWN = ("mfu", "data_wait", "step_seconds", "samples_per_second")
"""Figures of the log ticks that are drawn; the others stand in the table."""


def performance(history: RunHistory) -> str:
    """The section, or nothing for a run that kept no account."""
    seconds = history.seconds
    if not seconds:
        return ""
    account = next(life.account for life in reversed(history.lives) if life.account)
    facts = pairs(dict(figures(history, account)))
    body = f"{spent(seconds)}{facts}{charts(history)}"
    return f'<section id="performance"><h2>Time and devices</h2>{body}</section>'


def spent(seconds: Mapping[str, float]) -> str:
    """Every category's part of the time, the categories in their order."""
    whole = sum(seconds.values()) or 1.0
    rows = [
        (name, f"{seconds.get(name, 0.0) / whole:.1%}", duration(seconds.get(name, 0.0)), meaning)
        for name, meaning in CATEGORIES.items()
        if seconds.get(name, 0.0) > 0
    ]
    return table(("time in", "share", "seconds", "what it is"), rows)


def figures(history: RunHistory, account: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of what is known."""
    yield "goodput", f"{goodput(history.seconds):.1%} of the processes' wall time"
    if account.get("first_step_s") is not None:
        yield "time to first step", f"{account['first_step_s']:.1f} s, of the last process"
    of_step = account.get("step_compilations", 0)
    yield "compiled programs", f"{account.get('compilations', 0)}, of them the train step {of_step} times"
    yield "devices", f"{account.get('devices', 0)} x {account.get('device_kind', 'unknown')}"
    if "memory_peak_bytes" in account:
        limit = account.get("memory_limit_bytes")
        yield (
            "device memory, peak",
            size(account["memory_peak_bytes"]) + (f" of {size(limit)}" if limit else ""),
        )
    else:
        yield "device memory, peak", "not reported by this backend"
    yield from utilization(history, account)


def utilization(history: RunHistory, account: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Model FLOPs and MFU with their formula, or why there is none."""
    flops = account.get("flops_per_step")
    if flops is None:
        yield "model FLOPs", "not known: this model has no formula"
        return
    yield "model FLOPs of a step", f"{rate(flops)} ({CONVENTION}; {account['counts']})"
    speed = history.metrics.get(f"{PREFIX}model_flops_per_second", {})
    if speed:
        yield "model FLOP/s", f"median {rate(median(speed))}"
    peak = account.get("peak_flops")
    if peak is None:
        kind = f"{account.get('device_kind')} in {account['dtype']}"
        yield "MFU", f"not reported: no published peak of {kind} is known here"
        return
    use = history.metrics.get(f"{PREFIX}mfu", {})
    against = f"of {rate(peak)}FLOP/s a device ({account['dtype']}, dense)"
    yield "MFU", f"median {median(use):.1%} {against}" if use else f"not measured, {against}"


def charts(history: RunHistory) -> str:
    """The figures of the log ticks over the steps."""
    resumes = sorted({life.first_step for life in history.lives if life.first_step})
    draw = partial(chart, span=logged_span(history), resumes=resumes, limit=SMALL_POINTS)
    drawn: list[str] = []
    for name in DRAWN:
        points = history.metrics.get(PREFIX + name, {})
        if len(points) > 1:
            lines = trend(short(name), points)
            note = f"median {number(median(points))}" if name != "data_wait" else last(lines)
            drawn.append(draw(title(name), lines, note=note))
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""
