"""A chart as HTML: lines in an SVG that stretches with the page, marks as text that does not.

The picture needs no script; the script adds the readout under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dew.report.markup import escape
from dew.report.scales import Scale, label, steps_scale, values_scale
from dew.report.series import Point, thin
from dew.telemetry.amounts import number

WIDTH, HEIGHT = 2000, 1000
"""Units of the SVG across and down."""
VALUE_TICKS = 5
"""About how many numbers stand beside the axis of values."""
LOG_FROM = 200
"""Steps of a run from which on a logarithmic axis of steps is offered."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: shown in the readout.
        points: rising steps; a non-finite value breaks the line.
        look: `raw`, `smooth`, `points` (joined), or `dots` that stand by themselves.
    """

    name: str
    points: Sequence[Point]
    look: str


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    note: str = "",
    span: tuple[int, int],
    resumes: Sequence[int] = (),
    limit: int = 500,
    wide: bool = False,
) -> str:
    """The figure of `lines` over the steps.

    Args:
        title: what is drawn.
        lines: at least one, with at least one point between them.
        note: a word beside the title, such as the last value.
        span: the first and the last step of the run's log.
        resumes: steps at which the run went on after a stop.
        limit: most points drawn of a line.
        wide: the chart spans the page.
    """
    drawn = [Line(line.name, thin(line.points, limit), line.look) for line in lines]
    finite = [value for line in drawn for _, value in line.points if math.isfinite(value)]
    y, cut = values_scale(finite or [0.0])
    views = [steps_scale(0, span[1])]
    if span[1] >= LOG_FROM:
        views.append(steps_scale(*span, log=True))
    if cut:
        note += f" · peak {number(max(finite))} above the frame"
    toggle = '<label class="toggle"><input type="checkbox">log steps</label>' if len(views) > 1 else ""
    look = " ".join(["chart", *(["wide"] if wide else []), *(["cut"] if cut else [])])
    plots = "".join(plot(drawn, x, y, resumes) for x in views)
    longest = max(len(label(value)) for value in y.ticks(VALUE_TICKS))
    return (
        f'<figure class="{look}" style="--label:{longest}"><figcaption><h3>{escape(title)}</h3>'
        f'<span class="note">{escape(note.removeprefix(" · "))}</span>{toggle}</figcaption>{plots}'
        f'<script type="application/json">{readout(drawn)}</script></figure>'
    )


def plot(lines: Sequence[Line], x: Scale, y: Scale, resumes: Sequence[int], *, kind: str = "") -> str:
    """The frame with its lines for one axis across.

    Args:
        lines: what is drawn.
        x, y: the axes.
        resumes: steps with a mark.
        kind: `linear` is shown at first, `log` on request; default by the axis.
    """
    grid = "".join(
        f'<i class="y" style="bottom:{100 * y.place(value):.2f}%"><b>{escape(label(value))}</b></i>'
        for value in y.ticks(VALUE_TICKS)
    )
    grid += "".join(
        f'<i class="x" style="left:{100 * x.place(value):.2f}%"><b>{escape(label(value))}</b></i>'
        for value in x.ticks(6)
    )
    grid += "".join(
        f'<i class="resume" style="left:{100 * x.place(step):.2f}%" title="resumed at step {step}"></i>'
        for step in resumes
        if x.low <= step <= x.high
    )
    paths = "".join(path(line, x, y) for line in lines)
    domain = f'data-x="{x.low},{x.high},{int(x.log)}" data-y="{y.low!r},{y.high!r}"'
    kind = kind or ("log" if x.log else "linear")
    return (
        f'<div class="plot {kind}" {domain}>{grid}<svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none" aria-hidden="true">{paths}</svg></div>'
    )


def path(line: Line, x: Scale, y: Scale) -> str:
    """The SVG path of a line, its dots where the look asks for them, and marks where it has no number."""
    pieces: list[str] = []
    dots: list[str] = []
    missing: list[str] = []
    pen = "M"
    for step, value in line.points:
        across = round(WIDTH * x.place(step))
        if not math.isfinite(value):
            missing.append(f"M{across} {HEIGHT}v-40")
            pen = "M"
            continue
        down = round(HEIGHT * (1 - y.place(value)))
        pieces.append(f"{pen}{across} {down}")
        dots.append(f"M{across} {down}h.01")
        pen = "L"
    drawn = "" if line.look == "dots" else f'<path class="{line.look}" d="{"".join(pieces)}"/>'
    if line.look in ("points", "dots") or len(pieces) == 1:
        drawn += f'<path class="dots" d="{"".join(dots)}"/>'
    return drawn + (f'<path class="missing" d="{"".join(missing)}"/>' if missing else "")


def readout(lines: Sequence[Line]) -> str:
    """The numbers behind the lines as JSON that is safe inside a script element."""
    data = [
        {
            "name": line.name,
            "look": line.look,
            "x": [step for step, _ in line.points],
            "y": [float(f"{value:.5g}") if math.isfinite(value) else None for _, value in line.points],
        }
        for line in lines
    ]
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
