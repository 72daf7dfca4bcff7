"""Rows of prompts and of preference pairs. Dimensions: P prompt slots, S predictions a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dew.data.chat.roles import Role
from dew.data.chat.rows import held_out_none
from dew.data.chat.store import ChatStore
from dew.data.records import Records
from dew.data.tokens.source import Int64s, TokenBytes, require_vocabulary
from dew.data.tokens.windows import RowSource, split_records

type Int32s = npt.NDArray[np.int32]


class _Texts:
    """The rendered texts of a split by number."""

    def __init__(self, store: ChatStore, split: str, vocab_size: int) -> None:
        self.bounds: Int64s = store.bounds(split)
        self._ids = TokenBytes(store.directory / f"{split}.bin", store.meta.dtype)
        self._roles = TokenBytes(store.directory / f"{split}.roles", "uint8")
        self._vocab_size = vocab_size

    def filled(self, number: int, width: int) -> tuple[Int32s, Int32s]:
        """Ids and roles of a text, each [width], filled with 0."""
        start, stop = (int(each) for each in self.bounds[number : number + 2])
        ids, roles = np.zeros((2, width), np.int32)
        ids[: stop - start] = self._ids.read(start, stop)
        roles[: stop - start] = self._roles.read(start, stop)
        require_vocabulary(ids, self._vocab_size, f"{self._ids!r}", f"text {number}")
        return ids, roles


class PromptRows:
    """`prompt` [P] and `prompt_mask` [P], 1 where a slot holds an id; the ids stand first.

    Args:
        texts: the prompts.
        kept: [rows], which of them.
        width: P.
    """

    def __init__(self, texts: _Texts, kept: Int64s, width: int) -> None:
        self._texts = texts
        self._kept = kept
        self._width = width

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> dict[str, Int32s]:
        number = int(self._kept[index])
        ids, _ = self._texts.filled(number, self._width)
        count = int(self._texts.bounds[number + 1] - self._texts.bounds[number])
        return {"prompt": ids, "prompt_mask": (np.arange(self._width) < count).astype(np.int32)}


class PairRows:
    """`chosen` and `rejected`, each [S + 1], and their masks [S], 1 at the answer's targets.

    Args:
        texts: of pair `i` the answers `2 i` and `2 i + 1`.
        kept: [rows], which pairs.
        width: S + 1.
    """

    def __init__(self, texts: _Texts, kept: Int64s, width: int) -> None:
        self._texts = texts
        self._kept = kept
        self._width = width

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> dict[str, Int32s]:
        row: dict[str, Int32s] = {}
        for place, name in enumerate(("chosen", "rejected")):
            ids, roles = self._texts.filled(2 * int(self._kept[index]) + place, self._width)
            row[name] = ids
            row[f"{name}_mask"] = (roles[1:] == Role.ASSISTANT).astype(np.int32)
        return row


def answer_records(
    store: ChatStore,
    *,
    pairs: bool,
    width: int,
    seed: int,
    refuse_long: bool,
    vocab_size: int,
    room: str,
) -> Records:
    """Shuffled rows of the training records, new each epoch, and those of validation in order.

    Args:
        store: the rendered records.
        pairs: whether two texts in a row are a pair's answers; else each text is a prompt.
        width: ids that fit.
        seed: of the shuffle.
        refuse_long: refuse a record that does not fit, and not leave it out.
        vocab_size: ids lie below it.
        room: the field that sets `width`, for messages.

    Raises:
        ValueError: no training record fits, or one does not and `refuse_long` is set, or a text without an
            id.
    """
    rows: dict[str, RowSource] = {}
    told: list[str] = []
    for split in store.counts:
        if split == "val" and not store.counts[split].conversations:
            told.append(held_out_none(store))
            continue
        lengths = np.diff(store.bounds(split)).reshape(-1, 2 if pairs else 1)
        if (lengths == 0).any():
            empty = int(np.flatnonzero((lengths == 0).any(1))[0])
            raise ValueError(
                f"record {empty} of the {split} split makes no id; every one needs one to go on from"
            )
        long = (lengths > width).any(1)
        if refuse_long and long.any():
            most = int(lengths.max())
            raise ValueError(
                f"{int(long.sum())} of {len(long)} records of the {split} split have more than {width} "
                "ids, up to "
                f"{most}; raise {room}, or set data.too_long to leave_out"
            )
        kept = np.flatnonzero(~long)
        told.append(f"{split}: {len(kept)} records; {int(long.sum())} of more than {width} ids left out")
        if split == "train" and not len(kept):
            if not len(long):
                raise ValueError("no record is left to train on; lower data.val_fraction, or give more")
            raise ValueError(f"none of the {len(long)} records fits {width} ids; raise {room}")
        if len(kept):
            texts = _Texts(store, split, vocab_size)
            rows[split] = PairRows(texts, kept, width) if pairs else PromptRows(texts, kept, width)
    identity = _identity(store, width, seed)
    return split_records(rows, seed=seed, most=None, identity=identity, description=tuple(told), kinds={})


def _identity(store: ChatStore, width: int, seed: int) -> Mapping[str, object]:
    return {
        "answers": store.meta.digest,
        "roles": store.roles,
        "tokenizer": store.meta.tokenizer_fingerprint,
        "width": width,
        "seed": seed,
    }
