"""Which pieces of which documents share a row: the plan that packed rows are read by.

A document of `n` ids makes `n - 1` predictions, and a row of `S` predictions holds `S + 1` ids. A document is
cut into pieces of `S + 1` ids, each beginning with the id the one before ended with, so that every id but a
document's first is predicted once; the last piece is what is left. Pieces go into rows by first fit: in the
order of the corpus, each into the first row that has room (Johnson et al., 1974: at most 1.7 times as many
rows as the best packing needs). A document of one id predicts nothing and is left out.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass, replace

import numpy as np

from dew.data.tokens.source import Int64s, RecordedSource, TokenSource

CHUNK = 1 << 24
"""Ids that are searched for document ends at once."""

NEVER = 1 << 62
"""Above every row's number."""


def occurs(source: TokenSource, end: int) -> bool:
    """Whether an id stands anywhere in the corpus; reads up to its first place."""
    length = len(source)
    chunks = (source.read(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK))
    return any(bool((chunk == end).any()) for chunk in chunks)


def document_bounds(source: TokenSource, end: int) -> Int64s:
    """Where documents begin, and the end of the last: each ends with the id `end`, which belongs to it.

    Ids after the last `end` are a document too.
    """
    length = len(source)
    found = [
        np.flatnonzero(source.read(start, min(start + CHUNK, length)) == end).astype(np.int64) + start + 1
        for start in range(0, length, CHUNK)
    ]
    inner = np.concatenate([np.zeros(1, np.int64), *found])
    return inner if inner[-1] == length else np.append(inner, length)


def cut_documents(bounds: Int64s, seq_len: int) -> tuple[Int64s, Int64s]:
    """First id and number of ids of every piece, in the order of the corpus.

    Args:
        bounds: from `document_bounds`.
        seq_len: S.
    """
    starts, stops = bounds[:-1], bounds[1:]
    several = stops - starts > 1
    starts, stops = starts[several], stops[several]
    counts = -((starts + 1 - stops) // seq_len)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.repeat(starts, counts) + (np.arange(counts.sum()) - first) * seq_len
    return begins, np.minimum(np.repeat(stops, counts) - begins, seq_len + 1)


def first_fit(lengths: Int64s, capacity: int) -> Int64s:
    """The row of every piece: the first with room for it, in order.

    Args:
        lengths: of the pieces, from 2 to `capacity`.
        capacity: ids in a row.
    """
    rows = _OpenRows(capacity)
    return np.fromiter(map(rows.place, lengths.tolist()), np.int64, len(lengths))


class _OpenRows:
    """Rows by the room they have: a heap of row numbers for each room, and a tree of their smallest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._room: list[int] = []
        self._rows: list[list[int]] = [[] for _ in range(capacity + 1)]
        self._leaves = 1 << capacity.bit_length()
        self._least = [NEVER] * (2 * self._leaves)

    def place(self, length: int) -> int:
        """Put a piece of `length` ids into the first row with room for it, and return the row."""
        row = self._first_with(length) if length < self._capacity else NEVER
        if row == NEVER:
            row, room = len(self._room), self._capacity
            self._room.append(room)
        else:
            room = self._room[row]
            heapq.heappop(self._rows[room])
            self._update(room)
        self._room[row] = room = room - length
        if room > 1:  # no piece is shorter than two ids
            heapq.heappush(self._rows[room], row)
            self._update(room)
        return row

    def _first_with(self, room: int) -> int:
        least, node = self._least, self._leaves + room
        found = least[node]
        while node > 1:
            if not node & 1 and least[node + 1] < found:
                found = least[node + 1]
            node >>= 1
        return found

    def _update(self, room: int) -> None:
        least, rows, node = self._least, self._rows[room], self._leaves + room
        value = rows[0] if rows else NEVER
        while node and least[node] != value:
            least[node] = value
            beside = least[node ^ 1]
            value = beside if beside < value else value
            node >>= 1


@dataclass(frozen=True, kw_only=True)
class PackingCounts:
    """What became of the documents of a split.

    Attributes:
        documents: of one id or more.
        ids: of all documents.
        rows: that they are packed into.
        slots: of the rows.
        filled: slots that hold an id; a cut document's shared ids stand twice.
        cut: documents longer than a row.
        pieces: they are cut into.
        single: documents of one id, which predict nothing and are left out.
    """

    documents: int
    ids: int
    rows: int
    slots: int
    filled: int
    cut: int
    pieces: int
    single: int

    def __str__(self) -> str:
        share = 100 * self.filled / max(1, self.slots)
        return (
            f"{self.documents} documents of {self.ids} ids in {self.rows} rows, {share:.1f} % filled; "
            f"{self.cut} longer than a row, cut into {self.pieces} pieces; {self.single} of a single id "
            "left out"
        )


@dataclass(frozen=True, kw_only=True)
class PackingPlan:
    """The pieces of every row.

    Attributes:
        starts: first id of each piece, row by row and in each row in the order of the corpus.
        lengths: ids of each piece.
        offsets: [rows + 1], where each row's pieces begin.
        counts: what became of the documents.
    """

    starts: Int64s
    lengths: Int64s
    offsets: Int64s
    counts: PackingCounts

    @classmethod
    def of(cls, source: TokenSource, *, end: int | None, seq_len: int) -> PackingPlan:
        """The plan for the documents of `source`, equal wherever it is made and in whatever store.

        Args:
            source: the ids.
            end: the id that ends a document; None takes each record of the store for one.
            seq_len: S, predictions in a row.

        Raises:
            TypeError: no `end`, and a source without records.
        """
        if end is not None:
            return cls.over(document_bounds(source, end), seq_len=seq_len)
        if not isinstance(source, RecordedSource):
            raise TypeError(f"{source!r} has no records, so end= must say where its documents end")
        return cls.over(source.bounds(), seq_len=seq_len)

    @classmethod
    def over(cls, bounds: Int64s, *, seq_len: int) -> PackingPlan:
        """The plan for documents with these bounds.

        Args:
            bounds: [documents + 1], where each begins, and the end of the last.
            seq_len: S, predictions in a row.
        """
        starts, lengths = cut_documents(bounds, seq_len)
        plan = cls.placing(starts, lengths, seq_len=seq_len)
        sizes = np.diff(bounds)
        counts = replace(
            plan.counts,
            documents=int((sizes > 0).sum()),
            ids=int(bounds[-1] - bounds[0]),
            cut=int((sizes > seq_len + 1).sum()),
            pieces=len(lengths) - int(((sizes > 1) & (sizes <= seq_len + 1)).sum()),
            single=int((sizes == 1).sum()),
        )
        return replace(plan, counts=counts)

    @classmethod
    def placing(cls, starts: Int64s, lengths: Int64s, *, seq_len: int) -> PackingPlan:
        """The plan for pieces that each fit a row.

        Args:
            starts: [pieces], the first id of each.
            lengths: [pieces], ids of each, from 2 to S + 1.
            seq_len: S, predictions in a row.
        """
        rows = first_fit(lengths, seq_len + 1)
        order = np.argsort(rows, kind="stable")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(rows))])
        ids = int(lengths.sum())
        counts = PackingCounts(
            documents=len(lengths),
            ids=ids,
            rows=len(offsets) - 1,
            slots=(len(offsets) - 1) * (seq_len + 1),
            filled=ids,
            cut=0,
            pieces=0,
            single=0,
        )
        return cls(starts=starts[order], lengths=lengths[order], offsets=offsets, counts=counts)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> list[tuple[int, int]]:
        """First id and number of ids of every piece of row `index`."""
        pieces = slice(self.offsets[index], self.offsets[index + 1])
        return list(zip(self.starts[pieces].tolist(), self.lengths[pieces].tolist(), strict=True))

    def digest(self) -> str:
        """Identifies the plan."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.starts, self.lengths, self.offsets):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()
