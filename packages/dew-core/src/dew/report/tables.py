"""The tables of a report: configuration, environment, checkpoints and the processes of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dew.report.markup import escape
from dew.telemetry.amounts import duration, size
from dew.telemetry.history import RunHistory


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls inside its own frame."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(values: Mapping[str, Any]) -> str:
    """Names with their values; unset ones are dimmed."""
    looks = {True: " class=unset", False: ""}
    rows = "".join(
        f"<tr{looks[value is None]}><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>"
        for name, value in flat(values)
    )
    return f'<div class="scroll"><table class="pairs"><tbody>{rows}</tbody></table></div>'


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def shown(value: Any) -> str:
    """A value as text."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def configuration(record: Mapping[str, Any]) -> str:
    """The record's parts, each to unfold; single fields stand together under `run`."""
    if not record:
        return ""
    groups = {name: value for name, value in record.items() if isinstance(value, Mapping)}
    single = {name: value for name, value in record.items() if name not in groups}
    parts = {**({"run": single} if single else {}), **groups}
    folds = "".join(
        f"<details><summary>{escape(name)}<small>{len(list(flat(part)))} settings</small></summary>"
        f"{pairs(part)}</details>"
        for name, part in parts.items()
    )
    return f'<section id="configuration"><h2>Configuration</h2>{folds}</section>'


def environment(values: Mapping[str, Any]) -> str:
    """Where the run happened."""
    if not values:
        return ""
    packages = values.get("packages", {})
    facts = {name: value for name, value in values.items() if name != "packages" and value not in ("", None)}
    versions = (
        f"<details><summary>packages<small>{len(packages)} versions</small></summary>"
        f"{pairs(packages)}</details>"
        if packages
        else ""
    )
    return f'<section id="environment"><h2>Environment</h2>{pairs(facts)}{versions}</section>'


def checkpoints(history: RunHistory) -> str:
    """The checkpoints, and which of them are still there."""
    if not history.checkpoints:
        return ""
    rows = [
        (
            f"{saved.step:,}",
            moment(saved.time),
            size(saved.bytes),
            "kept" if (history.directory / saved.path).exists() else "deleted",
            saved.path,
        )
        for saved in reversed(history.checkpoints)
    ]
    body = table(("step", "written", "size", "now", "path"), rows)
    return f'<section id="checkpoints"><h2>Checkpoints</h2>{body}</section>'


def processes(history: RunHistory) -> str:
    """Each process of the run: its stretch of steps and its end."""
    if not history.lives:
        return ""
    last = len(history.lives) - 1
    rows = [
        (
            moment(life.started),
            f"{life.first_step:,} to {life.last_step:,}",
            duration(life.ended - life.started),
            history.status if index == last else life.status or "stopped without a word",
            life.command,
        )
        for index, life in enumerate(history.lives)
    ]
    body = table(("started", "steps", "time", "end", "command"), rows)
    return f'<section id="processes"><h2>Processes</h2>{body}</section>'


def moment(time: float) -> str:
    """A time to the minute, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
