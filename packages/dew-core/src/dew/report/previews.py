"""What the run showed of itself over time: texts and pictures, one panel a step."""

from __future__ import annotations

import base64
from pathlib import Path

from dew.report.curves import title
from dew.report.markup import escape
from dew.telemetry.amounts import number
from dew.telemetry.history import Preview, RunHistory
from dew.telemetry.png import SIGNATURE
from dew.telemetry.rows import FOLDER

MOST = 40
"""Steps that are shown, spread over the run, its first and last among them."""
LETTERS = 4000
"""Letters of one text."""
PICTURES = 500_000
"""Bytes of PNG in the page; the latest come first."""


def previews(history: RunHistory) -> str:
    """The panels in the order of their steps; the script shows one at a time."""
    shown = spread(history.previews, MOST)
    if not shown:
        return ""
    budget = [PICTURES]
    panels = [panel(history, preview, budget) for preview in reversed(shown)][::-1]
    slider = (
        f'<div class="slider" hidden><input type="range" min="0" max="{len(panels) - 1}" '
        f'value="{len(panels) - 1}" aria-label="preview"><output></output></div>'
    )
    return (
        f'<section id="previews"><h2>Previews</h2>{slider}'
        f'<div class="panels">{"".join(panels)}</div></section>'
    )


def spread(items: list[Preview], most: int) -> list[Preview]:
    """At most `most` of `items`, evenly spread, both ends among them."""
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def panel(history: RunHistory, preview: Preview, budget: list[int]) -> str:
    """One step's texts and pictures, with what validation measured there."""
    scores = [
        f"{title(name)} {number(points[preview.step])}"
        for name, points in history.validation.items()
        if preview.step in points
    ]
    heading = " · ".join([f"step {preview.step:,}", *scores])
    texts = "".join(text(item) for item in preview.items if item["kind"] == "text")
    images = "".join(
        picture(history.directory / FOLDER, item, budget) for item in preview.items if item["kind"] == "image"
    )
    grid = f'<div class="pictures">{images}</div>' if images else ""
    return f'<article class="panel"><h3>{escape(heading)}</h3>{texts}{grid}</article>'


def text(item: dict[str, str]) -> str:
    """A prompt and its continuation, harmless whatever they hold."""
    drawn = item["text"]
    more = (
        f'<span class="more">… {len(drawn) - LETTERS:,} more letters</span>' if len(drawn) > LETTERS else ""
    )
    prompt = escape(item["prompt"][:LETTERS])
    return f"<pre><mark>{prompt}</mark>{escape(drawn[:LETTERS])}{more}</pre>"


def picture(folder: Path, item: dict[str, str], budget: list[int]) -> str:
    """A PNG of the tracking folder inside the page, or its name where it is missing or too much."""
    caption = escape(item.get("caption", ""))
    name = escape(item["file"])
    path = (folder / item["file"]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return f"<figure><p>{name} is missing</p><figcaption>{caption}</figcaption></figure>"
    if path.stat().st_size > budget[0]:
        return f"<figure><p>{name}</p><figcaption>{caption}</figcaption></figure>"
    data = path.read_bytes()
    if not data.startswith(SIGNATURE):
        return f"<figure><p>{name} is no PNG</p><figcaption>{caption}</figcaption></figure>"
    budget[0] -= len(data)
    encoded = base64.b64encode(data).decode()
    return (
        f'<figure><img src="data:image/png;base64,{encoded}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
