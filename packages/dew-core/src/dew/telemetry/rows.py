"""The rows of a run's journal: one JSON object a line, each with its kind, its time and its step.

| kind | further fields |
|---|---|
| `run`, `resumed` | `total_steps`, `unit`, `record`, `summary`, `environment` |
| `metrics`, `validation` | `values`, and `nonfinite` for those JSON cannot hold |
| `preview` | `items`: texts inline, pictures as files beside the journal |
| `checkpoint` | `path`, `bytes` |
| `notice` | `message` |
| `account` | `account`: where the process's time went so far, see `Tracker.accounted` |
| `finished` | `status` |
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

FOLDER = "tracking"
JOURNAL = "journal.jsonl"
STARTS = ("run", "resumed")
"""The kinds that begin a life: one process's stretch of a run."""


def encode_row(kind: str, *, step: int, time: float, **fields: Any) -> bytes:
    """One journal line with its line end.

    Raises:
        ValueError: a field holds a NaN or an infinity; those go through `encode_values`.
    """
    row = {"kind": kind, "step": step, "time": round(time, 3), **fields}
    return json.dumps(row, allow_nan=False, separators=(",", ":"), default=str).encode() + b"\n"


def encode_values(values: Mapping[str, float]) -> dict[str, dict[str, float | None] | dict[str, str]]:
    """The fields of measured values: what JSON has no number for is null, and named in `nonfinite`."""
    numbers = {name: float(value) for name, value in values.items()}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    nonfinite = {name: repr(value) for name, value in numbers.items() if not math.isfinite(value)}
    return {"values": finite, **({"nonfinite": nonfinite} if nonfinite else {})}


def decode_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Undo `encode_values`."""
    nonfinite = row.get("nonfinite", {})
    return {
        name: float(nonfinite.get(name, "nan")) if value is None else float(value)
        for name, value in row["values"].items()
    }


def decode_row(line: bytes) -> dict[str, Any] | None:
    """The row of one line, or None where the line is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and {"kind", "step", "time"} <= row.keys()
    return row if whole else None
