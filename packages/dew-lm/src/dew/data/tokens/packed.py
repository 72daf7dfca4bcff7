"""Packed rows: several documents in a row, each with its own positions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dew.data.records import Records
from dew.data.tokens.corpus import TokenCorpus
from dew.data.tokens.packing import PackingPlan, occurs
from dew.data.tokens.source import TokenSource, place_of, require_vocabulary
from dew.data.tokens.windows import conversational, kinds_of, split_records

PADDING = 0
"""The segment of the slots behind a row's last document, and the id and position that stand there."""


class PackedRows:
    """Row `i` of a plan over a source.

    Args:
        source: the ids.
        plan: which of them stand in which row.
        seq_len: predictions in a row.
        vocab_size: ids must lie below it; None checks nothing.
        beside: further sources of the same length, by the field that a row gets from each.
    """

    def __init__(
        self,
        source: TokenSource,
        plan: PackingPlan,
        seq_len: int,
        vocab_size: int | None = None,
        *,
        beside: Mapping[str, TokenSource] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._seq_len = seq_len
        self._vocab_size = vocab_size
        self._beside = dict(beside or {})

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.int32]]:
        """`text`, `text_segment_ids` and `text_positions`, each int32 [seq_len + 1].

        The documents of a row are segments 1, 2, ... and each counts its positions from 0. Slots behind the
        last document hold 0 in all three. A field of `beside` has the shape and the padding of `text`.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        text, segments, positions = np.full((3, self._seq_len + 1), PADDING, np.int32)
        others = {name: np.full_like(text, PADDING) for name in self._beside}
        at = 0
        for document, (start, length) in enumerate(self._plan.row(index), 1):
            place = slice(at, at + length)
            text[place] = self._source.read(start, start + length)
            segments[place] = document
            positions[place] = np.arange(length)
            for name, source in self._beside.items():
                others[name][place] = source.read(start, start + length)
            at += length
        require_vocabulary(text, self._vocab_size, f"{self._source!r}", f"packed row {index}")
        return {"text": text, "text_segment_ids": segments, "text_positions": positions, **others}

    def __repr__(self) -> str:
        return f"PackedRows({self._source!r}, seq_len={self._seq_len}, plan={self._plan.digest()})"


def packed_records(
    corpus: TokenCorpus,
    *,
    document_end: int | None,
    seq_len: int,
    seed: int,
    val_rows: int | None,
    role: int | None = None,
) -> Records:
    """Shuffled packed rows of the training split, new each epoch, and those of validation in plan order.

    Args:
        corpus: the folder.
        document_end: the id that ends a document; None takes each record of the store for one.
        seq_len: predictions in a row.
        seed: of the shuffle.
        val_rows: at most this many validation rows, spread evenly over the split; None takes all.
        role: give the rows the roles of a conversation, this one for every token; None adds none.

    Raises:
        ValueError: a split without a document of two ids, or `document_end` nowhere in the training split.
    """
    if document_end is not None and not occurs(corpus.source("train"), document_end):
        raise ValueError(
            f"data.document_end={document_end} stands nowhere in {place_of(corpus.source('train'))}, so its "
            "documents have no borders; name the id that ends each, or read it with data:token-windows"
        )
    plans = {
        split: _planned(source, document_end, seq_len) for split, source in sorted(corpus.splits.items())
    }
    rows = {
        split: conversational(PackedRows(corpus.source(split), plan, seq_len, corpus.vocab_size), role)
        for split, plan in plans.items()
    }
    said = {} if role is None else {"role": role}
    return split_records(
        rows,
        seed=seed,
        most=val_rows,
        identity={
            **corpus.identity,
            "seq_len": seq_len,
            "seed": seed,
            "packing": plans["train"].digest(),
            **said,
        },
        description=tuple(f"{split}: {plan.counts}" for split, plan in plans.items()),
        kinds=kinds_of(rows, role),
    )


def _planned(source: TokenSource, end: int | None, seq_len: int) -> PackingPlan:
    plan = PackingPlan.of(source, end=end, seq_len=seq_len)
    if not len(plan):
        before = "" if end is None else f" before an id {end}"
        raise ValueError(
            f"{place_of(source)} holds no document of two ids or more{before}; check data.document_end"
        )
    return plan
