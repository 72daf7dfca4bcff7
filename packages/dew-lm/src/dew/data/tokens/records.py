"""Token sources over records: every record is a row of ids, and the split is one after another.

`TokenRecords` reads ArrayRecord shards (Google's random-access format) and `TokenColumn` a column of lists in
Parquet files. Both need the extra `data`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dew.data.tokens.built import built
from dew.data.tokens.columnar import open_parquet
from dew.data.tokens.extras import library
from dew.data.tokens.files import file_identity
from dew.data.tokens.source import Ids, Int64s, TokenBytes
from dew.data.tokens.store import IdDtype, checked_width

READ_AT_ONCE = 4096
"""ArrayRecord records whose lengths are read at once."""
FLAT, LENGTHS = "ids.bin", "lengths.npy"
"""The copy of a Parquet column in Dew's cache."""
RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
"""How ArrayRecord reads single records fastest."""


class RecordIds(ABC):
    """The ids of many records as one long row.

    Opening reads every record's length once. A copy sent to another process carries the paths and the
    lengths, and opens the files itself.

    Args:
        paths: the files, in order.
        dtype: width of an id.
        lengths: ids of every record, in order.
    """

    def __init__(self, paths: Sequence[str | Path], dtype: IdDtype, lengths: Int64s) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self.dtype: IdDtype = dtype
        self._offsets: Int64s = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    @property
    def place(self) -> str:
        """The file, or the first of several, for messages."""
        return str(self.paths[0])

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def bounds(self) -> Int64s:
        """[records + 1], where each record begins, and the end of the last."""
        return self._offsets

    @abstractmethod
    def read(self, start: int, stop: int) -> Ids:
        """Ids `start..stop-1`, as `[stop - start]` unsigned integers."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[str(path) for path in self.paths]}, {self.dtype!r})"


def _require_files(paths: Sequence[str | Path]) -> None:
    if not paths:
        raise ValueError(f"paths={paths!r} names no file; name one at least")


class TokenRecords(RecordIds):
    """ArrayRecord shards whose records are little-endian ids.

    Args:
        paths: the shards, in order.
        dtype: width of an id.

    Raises:
        ImportError: array-record is not installed.
        FileNotFoundError: a shard is not there.
        ValueError: no shard, a file of another kind, a record whose size is no whole number of ids, or a
            `dtype` that is not what the `meta.json` beside them says.
    """

    def __init__(self, paths: Sequence[str | Path], dtype: IdDtype) -> None:
        _require_files(paths)
        checked_width(Path(paths[0]).parent, dtype)
        self._readers: dict[int, Any] = {}
        shards = [_lengths_of_shard(Path(path), np.dtype(dtype).itemsize) for path in paths]
        self._first: Int64s = np.cumsum([0, *map(len, shards)], dtype=np.int64)
        super().__init__(paths, dtype, np.concatenate(shards))

    def read(self, start: int, stop: int) -> Ids:
        kind = np.dtype(self.dtype).newbyteorder("<")
        if stop <= start:
            return np.zeros(0, kind)
        first = int(np.searchsorted(self._offsets, start, side="right")) - 1
        last = int(np.searchsorted(self._offsets, stop, side="left"))
        data = b"".join(self._records(first, last))
        begin = start - int(self._offsets[first])
        return np.frombuffer(data, kind)[begin : begin + stop - start]

    def _records(self, first: int, last: int) -> Iterator[bytes]:
        while first < last:
            shard = int(np.searchsorted(self._first, first, side="right")) - 1
            base = int(self._first[shard])
            until = min(last, int(self._first[shard + 1]))
            yield from self._reader(shard).read(first - base, until - base)
            first = until

    def _reader(self, shard: int) -> Any:
        if shard not in self._readers:
            self._readers[shard] = _open_shard(self.paths[shard], RANDOM_ACCESS)
        return self._readers[shard]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_readers": {}}


def _lengths_of_shard(path: Path, width: int) -> Int64s:
    reader = _open_shard(path, "")
    count = reader.num_records()
    sizes = np.empty(count, np.int64)
    for start in range(0, count, READ_AT_ONCE):
        stop = min(start + READ_AT_ONCE, count)
        sizes[start:stop] = [len(record) for record in reader.read(start, stop)]
    reader.close()
    odd = np.flatnonzero(sizes % width)
    if odd.size:
        raise ValueError(
            f"record {odd[0]} of {path} has {sizes[odd[0]]} bytes, which is no whole number of ids of "
            f"{width} "
            "bytes; check dtype"
        )
    return sizes // width


def _open_shard(path: Path, options: str) -> Any:
    module = library("array_record.python.array_record_module", "array-record", "ArrayRecord files")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    reader = module.ArrayRecordReader(str(path), options)
    if not reader.ok():
        raise ValueError(f"{path} is no ArrayRecord file; write it again with array-record's writer")
    return reader


class TokenColumn(RecordIds):
    """A column of Parquet files that holds a list of ids in every row.

    Rows are compressed in groups, which is no form for reading windows in any order. So the column is written
    once to Dew's cache folder as a `.bin` file, with the lengths of its rows, and memory-mapped from there. A
    changed size or time of a file, another column or dtype makes another copy.

    Args:
        paths: the files, in order.
        column: its name; None takes the only one that holds lists of integers.
        dtype: width of the ids that are given out.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: a file is not there.
        ValueError: no file, a file of another kind, no such column or several, or ids that `dtype` does not
            hold.
    """

    def __init__(
        self, paths: Sequence[str | Path], column: str | None = None, dtype: IdDtype = "uint32"
    ) -> None:
        _require_files(paths)
        files = [Path(path) for path in paths]
        self.column = _column_of(files[0], open_parquet(files[0]), column)
        key = _column_key(files, self.column, dtype)
        folder = built("columns", key, lambda draft: _copy(draft, files, self.column, dtype), _is_copy)
        super().__init__(files, dtype, np.load(folder / LENGTHS))
        self._copy = TokenBytes(folder / FLAT, dtype)

    def read(self, start: int, stop: int) -> Ids:
        return self._copy.read(start, stop)


def _column_key(files: Sequence[Path], column: str, dtype: IdDtype) -> str:
    found = [file_identity(path) for path in files]
    return hashlib.blake2b(json.dumps([found, column, dtype]).encode(), digest_size=16).hexdigest()


def _is_copy(folder: Path) -> bool:
    return (folder / FLAT).is_file() and (folder / LENGTHS).is_file()


def _copy(draft: Path, files: Sequence[Path], column: str, dtype: IdDtype) -> None:
    lengths: list[Int64s] = [np.zeros(0, np.int64)]
    compute = library("pyarrow.compute", "pyarrow", "Parquet files")
    with (draft / FLAT).open("wb") as out:
        for path in files:
            file = open_parquet(path)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=[column]).column(0).combine_chunks()
                if rows.null_count:
                    raise ValueError(f"column {column!r} of {path} has rows without ids (null); drop them")
                lengths.append(compute.list_value_length(rows).to_numpy().astype(np.int64))
                values = rows.flatten().to_numpy(zero_copy_only=False)
                out.write(_checked(values, f"column {column!r} of {path}", dtype).tobytes())
    np.save(draft / LENGTHS, np.concatenate(lengths))


def _checked(values: npt.NDArray[Any], place: str, dtype: IdDtype) -> Ids:
    limit = np.iinfo(dtype).max
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= limit:
        raise ValueError(
            f"{place} holds ids {values.min()}..{values.max()}, which {dtype} does not hold; check dtype"
        )
    return values.astype(np.dtype(dtype).newbyteorder("<"))


def _column_of(path: Path, file: Any, named: str | None) -> str:
    kinds = library("pyarrow.types", "pyarrow", "Parquet files")
    schema = file.schema_arrow
    fitting = [
        field.name
        for field in schema
        if (kinds.is_list(field.type) or kinds.is_large_list(field.type))
        and kinds.is_integer(field.type.value_type)
    ]
    if named in fitting:
        return str(named)
    if named is None and len(fitting) == 1:
        return str(fitting[0])
    which = f"data.column={named!r} is none of them" if named is not None else "data.column is not set"
    raise ValueError(
        f"{path} has columns {', '.join(schema.names)}, of which {', '.join(fitting) or 'none'} holds "
        "lists of "
        f"integers, and {which}; name the one with the ids"
    )
