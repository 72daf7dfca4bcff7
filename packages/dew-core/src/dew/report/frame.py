"""The frame of a report's page: it holds its style and script, and loads nothing."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files

from dew.report.markup import escape
from dew.report.tables import moment

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page forbids itself every request."""


def framed(name: str, body: str, now: float) -> str:
    """The whole page around `body`, made at `now`, seconds since the epoch."""
    assets = files("dew.report") / "assets"
    style = (assets / "report.css").read_text(encoding="utf-8")
    script = (assets / "report.js").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(name)} · Dew</title><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>"
        f"<body><main>{body}</main><footer>Made {moment(now)} with dew report, "
        f"dew-core {version('dew-core')}.</footer><script>{script}</script></body></html>\n"
    )
