"""The report of a sweep: its best trial, the course of the trials, each field against the metric, a table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dew.config.sweep import Sweep, Trial
from dew.config.sweep.driver import best, higher_of
from dew.config.sweep.ledger import read_ledger
from dew.config.sweep.space import Dimension, Range
from dew.config.sweep.trial import TRIALS
from dew.report.chart import Line, chart, plot, readout
from dew.report.frame import framed
from dew.report.markup import escape
from dew.report.scales import Scale, values_scale
from dew.report.tables import configuration, table
from dew.telemetry.amounts import duration, number


def write_sweep_report(directory: str | os.PathLike[str], out: Path, *, now: float) -> Path:
    """Write the page of the sweep in `directory`, which may be running, to `out`.

    Raises:
        FileNotFoundError: `directory` is not the folder of a sweep.
        ValueError: its record or its ledger is damaged.
    """
    folder = Path(directory)
    page = render_sweep(Sweep.load(folder), read_ledger(folder), folder, now=now)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.write_text(page, encoding="utf-8")
    partial.replace(out)
    return out


def render_sweep(sweep: Sweep, trials: Sequence[Trial], folder: Path, *, now: float) -> str:
    """The page."""
    trials = list(trials)
    body = "".join(
        [
            head(sweep, trials, folder.resolve().name),
            f'<section id="curves"><h2>Trials</h2>{charts(sweep, trials)}</section>',
            f'<section id="trials"><h2>Table</h2>{listed(sweep, trials)}</section>',
            configuration(sweep.base),
        ]
    )
    return framed(folder.resolve().name, body, now)


def head(sweep: Sweep, trials: list[Trial], name: str) -> str:
    """What was swept, how far it is, and what was best."""
    ended = sum(trial.done for trial in trials)
    failed = sum(trial.status == "failed" for trial in trials)
    sentence = f"{ended} of {sweep.count} trials, {sweep.method}" + (f"; {failed} failed" if failed else "")
    cards: list[tuple[str, str, str]] = []
    found = best(trials)
    if found is not None:
        way = "higher is better" if higher_of(trials) else "lower is better"
        cards.append((f"best {found.facts['metric']}", number(found.value or 0.0), way))
        cards += [(field, shown(value), f"of {found.name}") for field, value in found.point.items()]
    cards.append(("trials", str(ended), f"of {sweep.count}"))
    cards.append(("time", duration(sum(trial.seconds for trial in trials)), "in trials"))
    items = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd><small>{escape(more)}</small></div>"
        for what, value, more in cards
    )
    kind = f'<p class="kind">sweep of {escape(sweep.recipe)}</p>'
    return (
        f'<header>{kind}<div class="name"><h1>{escape(name)}</h1>'
        f'</div><p>{escape(sentence)}.</p></header><dl class="figures">{items}</dl>'
    )


def charts(sweep: Sweep, trials: list[Trial]) -> str:
    """The metric over the trials, and against every field of numbers."""
    measured = [trial for trial in trials if trial.value is not None]
    if not measured:
        return '<p class="blank">No trial has completed yet.</p>'
    metric = str(measured[0].facts["metric"])
    points = [(trial.number + 1, float(trial.value or 0.0)) for trial in measured]
    lines = [
        Line(metric, points, "dots"),
        Line("best so far", course(points, higher_of(measured)), "smooth"),
    ]
    drawn = [chart(f"{metric} by trial", lines, span=(1, max(2, points[-1][0])), wide=True)]
    for field, dimension in sweep.space.items():
        pairs_of = [(trial.point[field], float(trial.value or 0.0)) for trial in measured]
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x, _ in pairs_of):
            drawn.append(scatter(f"{metric} by {field}", sorted(pairs_of), logarithmic(dimension)))
    return f'<div class="charts">{"".join(drawn)}</div>'


def course(points: list[tuple[int, float]], higher: bool) -> list[tuple[int, float]]:
    """The best value up to each trial."""
    choose = max if higher else min
    return [
        (trial, choose(value for _, value in points[: index + 1])) for index, (trial, _) in enumerate(points)
    ]


def logarithmic(dimension: Dimension) -> bool:
    """Whether a field's axis goes by ratio: its draws do, or its positive values span a factor of 20."""
    if isinstance(dimension, Range):
        return dimension.log
    numbers = [value for value in dimension.values if isinstance(value, (int, float))]
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 20


def scatter(title: str, points: list[tuple[Any, float]], log: bool) -> str:
    """A field's values across, the metric up."""
    xs = [float(x) for x, _ in points]
    low, high = min(xs), max(xs)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    elif not log:
        low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    y, _ = values_scale([value for _, value in points])
    line = Line("trial", points, "dots")
    body = plot([line], Scale(low, high, log), y, (), kind="linear")
    longest = max(len(number(value)) for value in (y.low, y.high))
    return (
        f'<figure class="chart scatter" style="--label:{longest}"><figcaption><h3>{escape(title)}</h3>'
        f'</figcaption>{body}<script type="application/json">{readout([line])}</script></figure>'
    )


def listed(sweep: Sweep, trials: list[Trial]) -> str:
    """Every trial, the best first, then those without a value."""
    sign = -1 if higher_of(trials) else 1
    ordered = sorted(trials, key=lambda each: (each.value is None, sign * (each.value or 0.0), each.number))
    rows = [
        (
            trial.name,
            *(shown(trial.point.get(field)) for field in sweep.space),
            number(trial.value) if trial.value is not None and math.isfinite(trial.value) else "",
            trial.status if trial.done else "running or cut off",
            duration(trial.seconds),
            trial.error or f"{TRIALS}/{trial.name}",
        )
        for trial in ordered
    ]
    metric = next((str(trial.facts["metric"]) for trial in trials if trial.facts), "value")
    return table(("trial", *sweep.space, metric, "end", "time", "run, or first cause"), rows)


def shown(value: Any) -> str:
    """A value as the command line writes it."""
    return number(value) if isinstance(value, float) else json.dumps(value).strip('"')
