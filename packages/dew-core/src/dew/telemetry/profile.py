"""Traces of what devices and host do, and XProf's own reports of them.

A trace is of this process alone: several processes write a folder each. Capturing needs JAX alone; reports
come from the package `xprof`, whose words and numbers are written as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dew.telemetry.config import ProfileWindow as ProfileWindow

SESSIONS = Path("plugins") / "profile"
"""Where JAX puts the sessions of a trace, each a folder with a file a host."""
TRACES = "*.xplane.pb"
REPORTS = "reports"

TOOLS = (
    "overview_page",
    "input_pipeline_analyzer",
    "framework_op_stats",
    "op_profile",
    "hlo_stats",
    "kernel_stats",
    "roofline_model",
    "memory_profile",
)
"""The reports of XProf that a trace as a whole has; those of single programs are for its own pages."""
ONE_HOST = ("memory_profile",)
TABLES = ("framework_op_stats", "hlo_stats", "kernel_stats", "roofline_model")
"""Reports that are one table each, which XProf can write as CSV too."""


def trace_folder(directory: str) -> str:
    """Where this process's part of a trace in `directory` goes: a folder of its own among several processes.

    Host and second name a trace's file, and processes of one host would write over each other.
    """
    import jax

    many = jax.process_count() > 1
    return f"{directory.rstrip('/')}/process_{jax.process_index()}" if many else directory


@contextmanager
def capture(directory: str) -> Generator[str]:
    """Trace what this process does within the block, and write it below `directory`.

    JAX runs ahead of its devices: wait for a result inside the block (`jax.block_until_ready`) where its work
    is to be seen.

    Yields:
        The folder that the trace is written to.

    Raises:
        RuntimeError: a trace is running already; JAX keeps one a process.
    """
    import jax

    folder = trace_folder(directory)
    jax.profiler.start_trace(folder)
    try:
        yield folder
    finally:
        jax.profiler.stop_trace()


def sessions(directory: str | Path) -> list[Path]:
    """The sessions of the traces at or below `directory`, the latest last.

    Raises:
        FileNotFoundError: none is there.
    """
    found = sorted({path.parent for path in Path(directory).rglob(TRACES)}, key=lambda path: path.name)
    if not found:
        raise FileNotFoundError(
            f"{directory} holds no trace ({TRACES}); record one with trainer.profile or "
            "dew.telemetry.profile.capture"
        )
    return found


def write_reports(
    session: str | Path, out: str | Path | None = None, *, tools: Sequence[str] = TOOLS
) -> list[Path]:
    """Write XProf's reports of one session: `TOOL.json` as XProf gives it, tables also as its `TOOL.csv`.

    Args:
        session: a folder that `sessions` lists; it is left as it is.
        out: where to; default `reports` in the session.
        tools: which of `TOOLS`. One that XProf has nothing for in this trace is left out.

    Raises:
        ImportError: `xprof` is not installed.
        ValueError: a tool that is none of `TOOLS`.
        FileNotFoundError: the session has no trace.
    """
    for tool in tools:
        if tool not in TOOLS:
            raise ValueError(
                f"tools names {tool!r}, which is no report of a whole trace; use {', '.join(TOOLS)}"
            )
    convert = converter()
    session = Path(session)
    traces = sorted(session.glob(TRACES))
    if not traces:
        raise FileNotFoundError(
            f"{session} holds no trace ({TRACES}); dew.telemetry.profile.sessions lists them"
        )
    folder = session / REPORTS if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:  # XProf leaves its intermediate files beside what it reads
        copies = [shutil.copy(path, scratch) for path in traces]
        for tool in tools:
            if tool not in ONE_HOST or len(copies) == 1:
                written += report(convert, copies, tool, folder)
    return written


def report(convert: Any, traces: list[str], tool: str, folder: Path) -> list[Path]:
    """The files of one tool; none where XProf has no data for it."""
    data, _ = convert.xspace_to_tool_data(traces, tool, {})
    if not data:
        return []
    native = folder / f"{tool}.json"
    native.write_bytes(data if isinstance(data, bytes) else data.encode())
    if tool not in TABLES:
        return [native]
    cells = folder / f"{tool}.csv"
    cells.write_text(convert.json_to_csv_string(data), encoding="utf-8")
    return [native, cells]


def converter() -> Any:
    """XProf's module that reads traces.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from xprof.convert import raw_to_tool_data
    except ImportError as error:
        raise ImportError(
            "reports of a trace are made by XProf, whose package is missing: pip install 'dew-core[profile]'",
            name="xprof",
        ) from error
    return raw_to_tool_data
