"""A corpus folder as the windows a language model trains on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import grain
import numpy as np
import numpy.typing as npt

from dew.data.chat.roles import Role
from dew.data.records import Records
from dew.data.tokens.source import TokenSource, Windows, place_of


def window_records(
    train: TokenSource,
    val: TokenSource | None,
    *,
    seq_len: int,
    seed: int,
    val_windows: int | None,
    identity: Mapping[str, object],
    vocab_size: int | None = None,
    role: int | None = None,
) -> Records:
    """Shuffled training windows, new each epoch, and the validation windows in order.

    Args:
        train: the ids of the training split.
        val: those of the validation split, or None.
        seq_len: predictions per window.
        seed: of the shuffle.
        val_windows: at most this many validation windows, spread evenly over the split; None takes all.
        identity: what a resumed run compares, beside `seq_len`, `seed` and `batch`.
        vocab_size: ids must lie below it, in every window read; None trusts them.
        role: give the rows the fields of a conversation, with this role for every token; None adds none.

    Raises:
        ValueError: a split too short for one window.
    """
    splits = {"train": train} if val is None else {"train": train, "val": val}
    rows = {
        split: conversational(_windows(source, seq_len, vocab_size), role) for split, source in splits.items()
    }
    told = tuple(f"{split}: {_described(source, seq_len)}" for split, source in splits.items())
    said = {} if role is None else {"role": role}
    return split_records(
        rows,
        seed=seed,
        most=val_windows,
        identity={**identity, "seq_len": seq_len, "seed": seed, **said},
        description=told,
        kinds=kinds_of(rows, role),
    )


def split_records(
    rows: Mapping[str, RowSource],
    *,
    seed: int,
    most: int | None,
    identity: Mapping[str, object],
    description: tuple[str, ...],
    kinds: Mapping[str, frozenset[str]],
) -> Records:
    """The rows of `train` shuffled, new each epoch, and those of `val`, where there are any, in order.

    Args:
        rows: of each split.
        seed: of the shuffle.
        most: at most this many validation rows, spread evenly over all; None takes all.
        identity: what a resumed run compares.
        description: what became of the source.
        kinds: of targets in each split, as `Dataset.kinds`.
    """
    return Records(
        train=grain.MapDataset.source(rows["train"]).seed(seed).shuffle(),
        validation=grain.MapDataset.source(spread(rows["val"], most)) if "val" in rows else None,
        identity=identity,
        description=description,
        kinds=kinds,
    )


def _windows(source: TokenSource, seq_len: int, vocab_size: int | None) -> Windows:
    windows = Windows(source, seq_len, vocab_size)
    if len(windows) < 1:
        raise ValueError(
            f"{place_of(source)} is too short for one window of seq_len={seq_len}, which takes {seq_len + 1} "
            "ids; use a shorter data.seq_len or a longer corpus"
        )
    return windows


def _described(source: TokenSource, seq_len: int) -> str:
    windows, tail = divmod(len(source) - 1, seq_len)
    return f"{len(source)} ids in {windows} windows of {seq_len + 1}; the last {tail} fill none"


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


def kinds_of(splits: Iterable[str], role: int | None) -> dict[str, frozenset[str]]:
    """`Dataset.kinds` of splits whose every token is `role`'s; None says nothing of them."""
    return {} if role is None else {split: frozenset({Role(role).name.lower()}) for split in splits}


def spread(rows: RowSource, count: int | None) -> RowSource:
    """At most `count` of the rows, spread evenly over all; None takes all."""
    return rows if count is None or count >= len(rows) else _Chosen(rows, count)


class _Conversational:
    def __init__(self, rows: RowSource, role: int) -> None:
        self._rows = rows
        self._role = role

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int32]]:
        row = self._rows[index]
        whole = np.ones_like(row["text"])
        segments = row.get("text_segment_ids", whole)
        return {
            "text": row["text"],
            "text_segment_ids": segments,
            "text_positions": row.get("text_positions", np.arange(len(whole), dtype=np.int32)),
            "text_roles": np.where(segments != 0, np.int32(self._role), np.int32(0)),
        }

    def __repr__(self) -> str:
        return f"Conversational({self._rows!r}, role={self._role})"


def conversational(rows: RowSource, role: int | None) -> RowSource:
    """The rows with the four fields of conversations, `role` on every token; None leaves them as they are."""
    return rows if role is None else _Conversational(rows, role)
