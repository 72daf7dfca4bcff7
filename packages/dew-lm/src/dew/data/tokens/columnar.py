"""Parquet files and Arrow streams, opened where a file is read. Both need pyarrow, of the extra `data`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dew.data.tokens.extras import library


def open_parquet(path: Path) -> Any:
    """The `pyarrow.parquet.ParquetFile` at `path`.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: nothing is there.
        PermissionError: the file may not be read.
        ValueError: it is damaged or of another kind.
    """
    parquet = library("pyarrow.parquet", "pyarrow", "Parquet files")
    return _opened(path, "Parquet file", lambda: parquet.ParquetFile(path, memory_map=True))


def open_arrow_stream(path: Path) -> Any:
    """The record batches of the Arrow stream at `path`; it raises what `open_parquet` does."""
    pyarrow = library("pyarrow", "pyarrow", "Arrow files")
    ipc = library("pyarrow.ipc", "pyarrow", "Arrow files")
    return _opened(path, "Arrow stream", lambda: ipc.open_stream(pyarrow.memory_map(str(path))))


def _opened(path: Path, kind: str, opener: Callable[[], Any]) -> Any:
    pyarrow = library("pyarrow", "pyarrow", f"{kind}s")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    try:
        return opener()
    except PermissionError:
        raise
    except (pyarrow.ArrowException, OSError) as error:  # a footer that makes no sense is an OSError
        raise ValueError(f"{path} is no {kind}, or a damaged one: {error}") from error
