"""`dew list`: the runs of a folder, the latest first."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dew.cli.errors import SUCCESS, UserError
from dew.telemetry.amounts import ago, number
from dew.telemetry.history import RunHistory, read_journal

DEEPEST = 3
"""Levels of folders that a run's name may have."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    folder = Path(parser().parse_args(argv).folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that holds runs, or train one: dew train --help")
    runs = sorted(run_folders(folder), key=lambda path: -last_change(path))
    if not runs:
        print(f"No run in {folder}.")
        return SUCCESS
    now = time.time()
    rows = [row(path, folder, now) for path in runs]
    print(columns([("RUN", "OBJECTIVE", "STEPS", "STATUS", "LAST", "HEARD OF"), *rows]))
    return SUCCESS


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew list",
        allow_abbrev=False,
        description="List the runs of a folder with their state and last figures.",
    )
    made.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="checkpoints",
        help="folder of runs; default ./checkpoints",
    )
    return made


def run_folders(folder: Path) -> Iterator[Path]:
    """The folders below `folder` that are runs; a run's name may have several parts."""
    for path, names, files in os.walk(folder):
        depth = len(Path(path).relative_to(folder).parts)
        if "run.json" in files and depth:
            yield Path(path)
            names.clear()
        elif depth >= DEEPEST:
            names.clear()


def last_change(run: Path) -> float:
    """When the run was last written to."""
    journal = run / "tracking" / "journal.jsonl"
    return (journal if journal.exists() else run / "run.json").stat().st_mtime


def row(run: Path, folder: Path, now: float) -> tuple[str, ...]:
    """One line of the list; a run whose files cannot be read says so."""
    name = str(run.relative_to(folder))
    try:
        history = read_journal(run)
    except (ValueError, KeyError, OSError) as error:
        return (name, "-", "-", "unreadable", str(error)[:30], ago(now - last_change(run)))
    steps = f"{history.step}/{history.total_steps}" if history.total_steps else "-"
    status = {"empty": "not started", "completed": "finished"}.get(history.status, history.status)
    objective = str(history.record.get("objective") or "-")
    return (name, objective, steps, status, last_figure(history), ago(now - last_change(run)))


def last_figure(history: RunHistory) -> str:
    """The last value of the first validation metric, else of the loss."""
    series = [*history.validation.items(), *history.metrics.items()]
    for name, points in series:
        if points and (name.startswith("validation/") or name == "train/loss"):
            return f"{name.partition('/')[2]} {number(list(points.values())[-1])}"
    return "-"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows with their cells under each other."""
    widths = [max(len(each[index]) for each in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(each, widths, strict=True)).rstrip()
        for each in rows
    )
