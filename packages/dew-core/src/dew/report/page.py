"""The report of a run as one HTML file that loads nothing: style, script, curves and pictures are inside."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from dew.report.curves import curves
from dew.report.heading import heading
from dew.report.markup import escape
from dew.report.performance import performance
from dew.report.previews import previews
from dew.report.strip import strip
from dew.report.tables import checkpoints, configuration, environment, moment, processes
from dew.telemetry.history import RunHistory, read_journal

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page forbids itself every request."""
REPORT = "report.html"


def write_report(directory: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of the run in `directory`, which may still be running.

    Args:
        directory: the run directory.
        out: the file to write; default `report.html` in the run directory.

    Returns:
        The file written.

    Raises:
        FileNotFoundError: `directory` is not a run's folder, or the folder of `out` is not there.
    """
    history = read_journal(directory)
    path = Path(directory) / REPORT if out is None else Path(out)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(render_report(history, now=time.time()), encoding="utf-8")
    partial.replace(path)
    return path


def render_report(history: RunHistory, *, now: float) -> str:
    """The page of `history` as of `now`, seconds since the epoch."""
    name = history.directory.resolve().name
    assets = files("dew.report") / "assets"
    style = (assets / "report.css").read_text(encoding="utf-8")
    script = (assets / "report.js").read_text(encoding="utf-8")
    body = "".join(
        [
            heading(history, name, now),
            f'<section id="curves"><h2>Curves</h2>{curves(history)}</section>',
            strip(history),
            previews(history),
            performance(history),
            configuration(history.record),
            environment(history.environment),
            checkpoints(history),
            processes(history),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(name)} · Dew</title><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>"
        f"<body><main>{body}</main><footer>Made {moment(now)} with dew report, "
        f"dew-core {version('dew-core')}.</footer><script>{script}</script></body></html>\n"
    )
