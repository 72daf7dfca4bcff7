"""A corpus folder as the windows a language model trains on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import grain
import numpy as np
import numpy.typing as npt

from dew.data.records import Records
from dew.data.tokens.source import TokenBytes, Windows
from dew.data.tokens.store import IdDtype


def window_records(
    directory: Path,
    *,
    dtype: IdDtype,
    seq_len: int,
    seed: int,
    val_windows: int | None,
    identity: Mapping[str, object],
    vocab_size: int | None = None,
) -> Records:
    """Shuffled training windows of `train.bin`, new each epoch, and the windows of `val.bin` in order.

    Args:
        directory: the corpus folder.
        dtype: width of an id.
        seq_len: predictions per window.
        seed: of the shuffle.
        val_windows: at most this many validation windows, spread evenly over the split; None takes all.
        identity: what a resumed run compares, beside `seq_len`, `seed` and `batch`.
        vocab_size: ids must lie below it, in every window read; None trusts them.

    Raises:
        FileNotFoundError: no `train.bin`.
        ValueError: a split too short for one window.
    """
    train = Windows(TokenBytes(directory / "train.bin", dtype), seq_len, vocab_size)
    _require_window(directory / "train.bin", train, seq_len)
    validation = None
    if (directory / "val.bin").exists():
        windows = Windows(TokenBytes(directory / "val.bin", dtype), seq_len, vocab_size)
        _require_window(directory / "val.bin", windows, seq_len)
        validation = grain.MapDataset.source(spread(windows, val_windows))
    return Records(
        train=grain.MapDataset.source(train).seed(seed).shuffle(),
        validation=validation,
        identity={**identity, "seq_len": seq_len, "seed": seed},
    )


def _require_window(path: Path, windows: Windows, seq_len: int) -> None:
    if len(windows) < 1:
        raise ValueError(
            f"{path} is too short for one window of seq_len={seq_len}, which takes {seq_len + 1} ids; "
            "use a shorter data.seq_len or a longer corpus"
        )


class RowSource(Protocol):
    """Rows of a language model by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int32]]: ...


class _Chosen:
    def __init__(self, rows: RowSource, count: int) -> None:
        self._rows = rows
        self._indices = np.arange(count) * len(rows) // count

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int32]]:
        return self._rows[int(self._indices[index])]


def spread(rows: RowSource, count: int | None) -> RowSource:
    """At most `count` of the rows, spread evenly over all; None takes all."""
    return rows if count is None or count >= len(rows) else _Chosen(rows, count)
