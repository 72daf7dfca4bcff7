"""The texts a run drew over time, one panel a step."""

from __future__ import annotations

from dew.report.curves import title, with_references
from dew.report.markup import escape
from dew.telemetry.amounts import number
from dew.telemetry.history import Preview, RunHistory

MOST = 40
"""Steps that are shown, spread over the run, its first and last among them."""
SCORES = 2
"""Of the measures at a step, those that stand above what was drawn there."""
LETTERS = 4000
"""Letters of one text."""


def previews(history: RunHistory) -> str:
    """The panels in the order of their steps; the script shows one at a time."""
    shown = spread([each for each in history.previews if texts(each)], MOST)
    if not shown:
        return ""
    panels = [panel(history, preview) for preview in shown]
    slider = (
        f'<div class="slider" hidden><input type="range" min="0" max="{len(panels) - 1}" '
        f'value="{len(panels) - 1}" aria-label="preview"><output></output></div>'
    )
    return (
        f'<section id="previews"><h2>Texts over time</h2>{slider}'
        f'<div class="panels">{"".join(panels)}</div></section>'
    )


def spread(items: list[Preview], most: int) -> list[Preview]:
    """At most `most` of `items`, evenly spread, both ends among them."""
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def texts(preview: Preview) -> list[dict[str, str]]:
    """The texts of a preview."""
    return [item for item in preview.items if item["kind"] == "text"]


def panel(history: RunHistory, preview: Preview) -> str:
    """One step's texts."""
    drawn = "".join(text(item) for item in texts(preview))
    return f'<article class="panel"><h3>{escape(heading(history, preview))}</h3>{drawn}</article>'


def heading(history: RunHistory, preview: Preview) -> str:
    """The step, and what validation measured there."""
    scores = [
        f"{title(name)} {number(history.validation[name][preview.step])}"
        for name in with_references(list(history.validation))
        if preview.step in history.validation[name]
    ][:SCORES]
    return " · ".join([f"step {preview.step:,}", *scores])


def text(item: dict[str, str]) -> str:
    """A prompt and its continuation, harmless whatever they hold."""
    drawn = item["text"]
    more = (
        f'<span class="more">… {len(drawn) - LETTERS:,} more letters</span>' if len(drawn) > LETTERS else ""
    )
    prompt = escape(item["prompt"][:LETTERS])
    return f"<pre><mark>{prompt}</mark>{escape(drawn[:LETTERS])}{more}</pre>"
