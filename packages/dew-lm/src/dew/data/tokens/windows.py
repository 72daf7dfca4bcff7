"""A corpus folder as the `Dataset` a language model trains on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grain
import numpy as np

from dew.data.config import Loading
from dew.data.dataset import Dataset
from dew.data.tokens.source import TokenBytes, Windows
from dew.data.tokens.store import IdDtype


def window_dataset(
    directory: Path,
    *,
    dtype: IdDtype,
    seq_len: int,
    batch: int,
    seed: int,
    val_windows: int | None,
    loading: Loading,
    identity: Mapping[str, object],
    vocab_size: int | None = None,
) -> Dataset:
    """Shuffled training windows of `train.bin`, new each epoch, and the windows of `val.bin` in order.

    Args:
        directory: the corpus folder.
        dtype: width of an id.
        seq_len: predictions per window.
        batch: windows in a global batch.
        seed: of the shuffle.
        val_windows: at most this many validation windows, spread evenly over the split; None takes all.
        loading: concurrency.
        identity: what a resumed run compares, beside `seq_len`, `seed` and `batch`.
        vocab_size: ids must lie below it, in every window read; None trusts them.

    Raises:
        FileNotFoundError: no `train.bin`.
        ValueError: a split too short for one window.
    """
    train = Windows(TokenBytes(directory / "train.bin", dtype), seq_len, vocab_size)
    _require_window(directory / "train.bin", train, seq_len)
    pipeline = grain.MapDataset.source(train).seed(seed).shuffle()
    validation = None
    if (directory / "val.bin").exists():
        windows = Windows(TokenBytes(directory / "val.bin", dtype), seq_len, vocab_size)
        _require_window(directory / "val.bin", windows, seq_len)
        validation = grain.MapDataset.source(_spread(windows, val_windows))
    return Dataset.from_grain(
        pipeline,
        batch=batch,
        validation=validation,
        loading=loading,
        fingerprint={**identity, "seq_len": seq_len, "seed": seed},
    )


def _require_window(path: Path, windows: Windows, seq_len: int) -> None:
    if len(windows) < 1:
        raise ValueError(
            f"{path} is too short for one window of seq_len={seq_len}, which takes {seq_len + 1} ids; "
            "use a shorter data.seq_len or a longer corpus"
        )


class _Chosen:
    def __init__(self, windows: Windows, count: int) -> None:
        self._windows = windows
        self._indices = np.arange(count) * len(windows) // count

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self._windows[int(self._indices[index])]


def _spread(windows: Windows, count: int | None) -> Windows | _Chosen:
    return windows if count is None or count >= len(windows) else _Chosen(windows, count)
