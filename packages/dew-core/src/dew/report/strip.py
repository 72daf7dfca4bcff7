"""The pictures a run drew over time, side by side at a few steps, the first and the last among them."""

from __future__ import annotations

import base64
from pathlib import Path

from dew.report.markup import escape
from dew.report.previews import heading, spread
from dew.telemetry.history import Preview, RunHistory
from dew.telemetry.png import SIGNATURE
from dew.telemetry.rows import FOLDER

MOST = 12
"""Steps whose pictures are shown."""
PICTURES = 540_000
"""Bytes of PNG in the page: with their encoding three quarters of a megabyte."""


def strip(history: RunHistory) -> str:
    """A card a step, in the order of the steps; as many as the page has room for."""
    drawn = [each for each in history.previews if images(each)]
    if not drawn:
        return ""
    shown = affordable(history, drawn)
    cards = "".join(card(history, each) for each in shown)
    more = f"<small>{len(shown)} of {len(drawn)} steps</small>" if len(shown) < len(drawn) else ""
    return f'<section id="images"><h2>Images over time {more}</h2><div class="strip">{cards}</div></section>'


def images(preview: Preview) -> list[dict[str, str]]:
    """The pictures of a preview."""
    return [item for item in preview.items if item["kind"] == "image"]


def affordable(history: RunHistory, drawn: list[Preview]) -> list[Preview]:
    """As many of `drawn`, evenly spread, as the page has room for; at least the last."""
    for most in range(min(MOST, len(drawn)), 1, -1):
        shown = spread(drawn, most)
        if sum(size(history, item) for each in shown for item in images(each)) <= PICTURES:
            return shown
    return drawn[-1:]


def size(history: RunHistory, item: dict[str, str]) -> int:
    """Bytes of a picture's file; 0 where it is missing."""
    path = file_of(history, item)
    return 0 if path is None else path.stat().st_size


def file_of(history: RunHistory, item: dict[str, str]) -> Path | None:
    """The file of a picture inside the tracking folder, or None."""
    folder = (history.directory / FOLDER).resolve()
    path = (folder / item["file"]).resolve()
    return path if path.is_relative_to(folder) and path.is_file() else None


def card(history: RunHistory, preview: Preview) -> str:
    """One step's pictures, with what validation measured there."""
    pictures = "".join(picture(history, item) for item in images(preview))
    return f'<article class="card"><h3>{escape(heading(history, preview))}</h3>{pictures}</article>'


def picture(history: RunHistory, item: dict[str, str]) -> str:
    """A PNG of the tracking folder inside the page, or its name where it is missing or too much."""
    caption = escape(item.get("caption", ""))
    shown = embedded(history, item, caption)
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def embedded(history: RunHistory, item: dict[str, str], caption: str) -> str:
    """The picture as an element, or a word on why it is not there."""
    name, path = escape(item["file"]), file_of(history, item)
    if path is None:
        return f"<p>{name} is missing</p>"
    data = path.read_bytes()
    if len(data) > PICTURES:
        return f"<p>{name} is too large for the page</p>"
    if not data.startswith(SIGNATURE):
        return f"<p>{name} is no PNG</p>"
    return f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}" alt="{caption}">'
