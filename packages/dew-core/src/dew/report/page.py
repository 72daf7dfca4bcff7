"""The report of a run as one HTML file that loads nothing: style, script, curves and pictures are inside."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dew.config.sweep.driver import is_sweep
from dew.report.curves import curves
from dew.report.frame import framed
from dew.report.heading import heading
from dew.report.performance import performance
from dew.report.previews import previews
from dew.report.strip import strip
from dew.report.sweep import write_sweep_report
from dew.report.tables import checkpoints, configuration, environment, processes
from dew.telemetry.history import RunHistory, read_journal

REPORT = "report.html"


def write_report(directory: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of the run or the sweep in `directory`, which may still be running.

    Args:
        directory: the folder of a run or a sweep.
        out: the file to write; default `report.html` in that folder.

    Returns:
        The file written.

    Raises:
        FileNotFoundError: `directory` is neither, or the folder of `out` is not there.
    """
    path = Path(directory) / REPORT if out is None else Path(out)
    if is_sweep(directory):
        return write_sweep_report(directory, path, now=time.time())
    history = read_journal(directory)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(render_report(history, now=time.time()), encoding="utf-8")
    partial.replace(path)
    return path


def render_report(history: RunHistory, *, now: float) -> str:
    """The page of `history` as of `now`, seconds since the epoch."""
    name = history.directory.resolve().name
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
    return framed(name, body, now)
