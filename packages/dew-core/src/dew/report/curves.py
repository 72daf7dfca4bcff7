"""Which curves a report draws: the loss, what validation measures, the rate, and the rest."""

from __future__ import annotations

import math
from functools import partial

from dew.report.chart import Line, chart
from dew.report.series import SMOOTHED_FROM, is_noisy, smooth
from dew.telemetry.amounts import number, rate
from dew.telemetry.history import Points, RunHistory

VOWELS = frozenset("aeiouyAEIOUY")
MAIN_POINTS, SMALL_POINTS = 2000, 450
APART = "performance/"
"""What a section of its own shows."""
MOST = 24
"""Charts of further metrics; a page stays readable, and under a megabyte."""


def curves(history: RunHistory) -> str:
    """The charts of a run, or a sentence where it has logged nothing."""
    resumes = sorted({life.first_step for life in history.lives if life.first_step})
    metrics = {name: points for name, points in history.metrics.items() if not name.startswith(APART)}
    loss = metrics.pop("train/loss", {})
    speed = metrics.pop(f"train/{history.unit}_per_second", {})
    draw = partial(chart, span=logged_span(history), resumes=resumes)
    parts: list[str] = []
    if loss:
        lines = trend("loss", loss)
        parts.append(draw("Training loss", lines, note=last(lines), limit=MAIN_POINTS, wide=True))
    for name, beside in with_references(list(history.validation)).items():
        lines = [Line(short(one), list(history.validation[one].items()), "points") for one in (name, *beside)]
        notes = [title(line.name.partition(".")[2]) + f" {last([line])}" for line in lines]
        parts.append(draw(f"Validation {title(name)}", lines, note=" · ".join(notes).strip()))
    if speed:
        lines = trend(f"{history.unit}/s", speed)
        note = f"median {rate(median(speed))}"
        parts.append(draw(f"Rate, {history.unit}/s", lines, note=note, limit=SMALL_POINTS))
    for name, points in list(metrics.items())[:MOST]:
        lines = trend(short(name), points)
        parts.append(draw(title(name), lines, note=last(lines), limit=SMALL_POINTS))
    if not parts:
        return '<p class="blank">No metric is logged yet.</p>'
    more = len(metrics) - MOST
    rest = f'<p class="aside">{more} further metrics are in the journal.</p>' if more > 0 else ""
    return f'<div class="charts">{"".join(parts)}</div>{rest}'


def with_references(names: list[str]) -> dict[str, list[str]]:
    """Each metric with those drawn beside it: `accuracy.start` stands in the chart of `accuracy`."""
    groups: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        base, dot, _ = name.partition(".")
        if dot and base in groups:
            groups[base].append(name)
            del groups[name]
    return groups


def logged_span(history: RunHistory) -> tuple[int, int]:
    """The first and the last step at which anything was measured: one axis for all charts."""
    logged = [*history.metrics.values(), *history.validation.values()]
    steps = [step for points in logged for step in points]
    return (min(steps), max(steps)) if steps else (0, 1)


def trend(name: str, points: Points) -> list[Line]:
    """A series as it was logged and, where it is long enough, its smoothed course."""
    logged = list(points.items())
    if len(logged) < SMOOTHED_FROM:
        return [Line(name, logged, "points")]
    if not is_noisy(logged):
        return [Line(name, logged, "smooth")]
    return [Line(name, logged, "raw"), Line("smoothed", smooth(logged), "smooth")]


def last(lines: list[Line]) -> str:
    """The last value of the last line."""
    return f"last {number(lines[-1].points[-1][1])}" if lines[-1].points else "no finite value"


def median(points: Points) -> float:
    """The middle one of the finite values; NaN where there is none."""
    values = sorted(value for value in points.values() if math.isfinite(value))
    return values[len(values) // 2] if values else math.nan


def short(name: str) -> str:
    """A metric's name without its phase."""
    return name.partition("/")[2] or name


def title(name: str) -> str:
    """A metric's name as words; one without a vowel is a short form, in capitals (KL)."""
    words = short(name).split("_")
    return " ".join(word.upper() if word.isalpha() and not VOWELS & set(word) else word for word in words)
