"""`run.json`: read and written through epath, so that a run may live in a bucket."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from etils import epath

RECORD = "run.json"


def record_path(directory: str) -> epath.Path:
    """Where the record of the run in `directory` is."""
    from etils import epath

    return epath.Path(directory) / RECORD


def write_record(directory: str, record: Mapping[str, object]) -> str:
    """Write `record` as `run.json`, whole or not at all, and return its path."""
    path = record_path(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{RECORD}.{os.getpid()}"
    partial.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    partial.replace(path)
    return os.fspath(path)


def read_record(directory: str) -> dict[str, Any]:
    """The record of the run in `directory`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is not a JSON object.
    """
    path = record_path(directory)
    if not path.exists():
        raise FileNotFoundError(f"{os.fspath(path)} is not there; is {directory} the folder of a run?")
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{os.fspath(path)} is not JSON ({error}); restore it or start another run"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(f"{os.fspath(path)} must hold a JSON object of fields")
    return cast("dict[str, Any]", record)
