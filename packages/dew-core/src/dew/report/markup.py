"""Text from elsewhere, made harmless inside a page."""

from __future__ import annotations

import html

from dew.telemetry.plain_text import visible


def escape(text: str) -> str:
    """`text` as HTML: markup is shown, and so is what is invisible or not allowed in a page."""
    return html.escape(visible(text))
