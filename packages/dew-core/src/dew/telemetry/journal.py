"""The tracker that writes a run's journal, `tracking/journal.jsonl` in the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dew.artifacts import Artifacts
from dew.telemetry.appender import Appender
from dew.telemetry.environment import describe_environment
from dew.telemetry.previews import Picture, preview_items
from dew.telemetry.rows import FOLDER, JOURNAL, encode_row, encode_values
from dew.telemetry.tracker import Tracker

ACCOUNT_EVERY_S = 5.0
"""Seconds between two rows about where the time went: so much of it a killed process leaves unsaid."""


class JournalTracker(Tracker):
    """Appends every event of a run to its journal. The file is opened when the run starts.

    Args:
        directory: the run directory.
        record: the configuration as `run.json` holds it.
        summary: further facts of the run.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        directory: str,
        *,
        record: Mapping[str, object],
        summary: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = Path(directory)
        self._folder = self._run / FOLDER
        self._record = record
        self._summary = summary or {}
        self._clock = clock
        self._appender: Appender | None = None
        self._account: tuple[int, Mapping[str, Any]] | None = None
        self._accounted = float("-inf")

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        self._appender = Appender(self._folder / JOURNAL)
        self._append(
            "resumed" if step else "run",
            step=step,
            total_steps=total_steps,
            unit=unit,
            record=self._record,
            summary=self._summary,
            environment=describe_environment(),
        )

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._append("metrics", step=step, **encode_values(values))

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        self._append("validation", step=step, **encode_values(values))

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        if self._appender is None:
            return
        items: list[Mapping[str, str]] = []
        for item in preview_items(artifacts):
            if isinstance(item, Picture):
                name = f"previews/{step:08d}_{len(items)}.png"
                self._appender.do(lambda item=item, name=name: item.save(self._folder / name))
                items.append({"kind": "image", "file": name, "caption": item.caption})
            else:
                items.append({"kind": "text", "prompt": item.prompt, "text": item.text})
        if items:
            self._append("preview", step=step, items=items)

    def checkpointed(self, path: str, *, step: int) -> None:
        place = Path(path).absolute()
        run = self._run.absolute()
        shown = place.relative_to(run).as_posix() if place.is_relative_to(run) else path
        self._append("checkpoint", step=step, path=shown, bytes=folder_bytes(place))

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        self._account = (step, account)
        if self._clock() - self._accounted >= ACCOUNT_EVERY_S:
            self._write_account()

    def notice(self, message: str, *, step: int) -> None:
        """Put on record what went wrong beside the training."""
        self._append("notice", step=step, message=message)

    def finished(self, status: str, *, step: int) -> None:
        if self._appender is None:
            return
        self._write_account()
        self._append("finished", step=step, status=status)
        appender, self._appender = self._appender, None
        appender.close()

    def _write_account(self) -> None:
        if self._account is not None:
            step, account = self._account
            self._append("account", step=step, account=account)
            self._account, self._accounted = None, self._clock()

    def _append(self, kind: str, *, step: int, **fields: Any) -> None:
        if self._appender is not None:
            self._appender.append(encode_row(kind, step=step, time=self._clock(), **fields))


def folder_bytes(folder: Path) -> int:
    """Bytes of the files under `folder`; 0 where it is not on this machine."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # an older checkpoint may be deleted while it is counted
    return total
