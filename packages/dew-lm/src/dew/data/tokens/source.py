"""Token sources: random access to the ids of one split, and the windows cut from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dew.data.tokens.store import ID_DTYPES, IdDtype, checked_width
from dew.failure import StatedFailure

type Ids = npt.NDArray[np.unsignedinteger[Any]]
type Int64s = npt.NDArray[np.int64]


class ForeignIds(StatedFailure, ValueError):
    """Ids that the run's tokenizer does not have."""


class TokenSource(Protocol):
    """The ids of one split as one long row."""

    def __len__(self) -> int:
        """Number of ids."""
        ...

    def read(self, start: int, stop: int) -> Ids:
        """Ids `start..stop-1`, as `[stop - start]` unsigned integers."""
        ...


@runtime_checkable
class RecordedSource(Protocol):
    """A source that came as records, each a document where nothing else says where documents end."""

    def bounds(self) -> Int64s:
        """[records + 1], where each record begins, and the end of the last."""
        ...


def place_of(source: TokenSource) -> str:
    """The file of a source, or what it calls itself, for messages."""
    return str(getattr(source, "place", source))


class TokenBytes:
    """A `.bin` file of little-endian ids, mapped into memory on the first read.

    A copy sent to another process carries the path and no data.

    Args:
        path: the file.
        dtype: width of an id; None takes what the `meta.json` beside a `.bin` file says.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a `dtype` that is not what the `meta.json` says, none where there is no such file, or a
            size that is no whole number of ids.
    """

    def __init__(self, path: str | Path, dtype: IdDtype | None = None) -> None:
        self.path = Path(path)
        size = self.path.stat().st_size
        # What stands beside the ids, as the roles of a conversation, is of a width of its own.
        dtype = checked_width(self.path.parent, dtype) if self.path.suffix == ".bin" else dtype
        if dtype is None:
            raise ValueError(f"{path} has no meta.json beside it; say dtype: {', '.join(ID_DTYPES)}")
        self.dtype: IdDtype = dtype
        width = np.dtype(dtype).itemsize
        if size % width:
            raise ValueError(f"{path} has {size} bytes, which is no whole number of {dtype} ids; check dtype")
        self._ids = size // width
        self._map: Ids | None = None

    @property
    def place(self) -> str:
        """The file, for messages."""
        return str(self.path)

    def __len__(self) -> int:
        return self._ids

    def read(self, start: int, stop: int) -> Ids:
        if self._map is None:
            self._map = np.memmap(self.path, dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r")
        return self._map[start:stop]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_map": None}

    def __repr__(self) -> str:
        return f"TokenBytes({str(self.path)!r}, {self.dtype!r})"


def require_vocabulary(
    ids: npt.NDArray[np.integer[Any]], vocab_size: int | None, source: str, place: str
) -> None:
    """Refuse ids that the run's tokenizer does not have.

    Args:
        ids: at least one.
        vocab_size: ids must lie below it; None checks nothing.
        source: where they are from, for the message.
        place: which row of it they make, for the message.

    Raises:
        ForeignIds: one is `vocab_size` or more.
    """
    if vocab_size is not None and int(ids.max()) >= vocab_size:
        raise ForeignIds(
            f"{source} holds the id {int(ids.max())} in {place}, and the run's tokenizer has ids 0 to "
            f"{vocab_size - 1}; name the tokenizer that wrote the ids, and check data.dtype"
        )


class Windows:
    """Window `i` of a source: ids `i*seq_len .. i*seq_len + seq_len`, so neighbours share one id.

    Each window yields `seq_len` predictions and every id but the first is predicted once; a tail that fills
    no window is left out.

    Args:
        source: the ids.
        seq_len: predictions per window.
        vocab_size: ids must lie below it; None checks nothing.
    """

    def __init__(self, source: TokenSource, seq_len: int, vocab_size: int | None = None) -> None:
        self._source = source
        self._seq_len = seq_len
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return max(0, (len(self._source) - 1) // self._seq_len)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int32]]:
        """`{"text": int32 [seq_len + 1]}`.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        start = index * self._seq_len
        ids = self._source.read(start, start + self._seq_len + 1)
        require_vocabulary(ids, self._vocab_size, f"{self._source!r}", f"window {index}")
        return {"text": ids.astype(np.int32)}

    def __repr__(self) -> str:
        return f"Windows({self._source!r}, seq_len={self._seq_len})"
