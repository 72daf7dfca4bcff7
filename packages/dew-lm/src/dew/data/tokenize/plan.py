"""What is tokenized: the documents of text, JSONL and Parquet files, cut into parts of about one size.

A part is the unit of work and of what a killed run keeps. Parts follow from the files alone, so the ids do
not depend on the number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from dew.data.text.corpus import Span, Words, open_text, text_files
from dew.data.text.reading import read_blocks
from dew.data.tokens.columnar import open_parquet
from dew.data.tokens.extras import library

type Kind = Literal["text", "lines", "rows"]

COLUMN = "text"
"""Of the text in JSONL and Parquet files, where none is named."""
COMMAND = Words(path="PATH", glob="--glob", sign=" ")
"""What the command's user writes."""
KINDS: dict[str, Kind] = {".jsonl": "lines", ".ndjson": "lines", ".parquet": "rows"}
"""Suffix -> how the file holds documents; any other file is one document of text."""
REFUSED = (".gz", ".zst", ".bz2", ".xz", ".zip")
"""Suffixes of packed files, which cannot be read from the middle."""
PARTS, SMALLEST, LARGEST = 512, 1 << 20, 64 << 20
"""How many parts there are, about, where each has so many bytes at least and at most."""
HEAD = 8192
"""Bytes of a text file that are looked at before work."""

type Document = tuple[str, Iterable[str]]
"""Its place, and its text in one or more blocks."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a file.

    Attributes:
        path: the file.
        kind: how it holds documents.
        start: first byte, or first row group.
        stop: the end of them.
    """

    path: str
    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True)
class Part:
    """Pieces that are tokenized together.

    Attributes:
        number: from 0, in the order of the corpus.
        pieces: in order.
        size: bytes of them.
    """

    number: int
    pieces: tuple[Piece, ...]
    size: int


def plan_parts(
    sources: Sequence[str], pattern: str, column: str | None, *, without: Path | None = None
) -> list[Part]:
    """Cut the files of `sources` into parts.

    Args:
        sources: files and folders; those of a folder in the order of their names. A file that several of them
            lead to stands once, where it comes first.
        pattern: which files of a folder.
        column: of the text in JSONL and Parquet files; None takes `COLUMN`.
        without: a folder that is passed over.

    Raises:
        FileNotFoundError: nothing is there.
        PermissionError: a file or folder may not be read.
        ValueError: a packed or binary file, records without the column, or a column without records.
    """
    found = (text_files(Path(each).expanduser(), pattern, COMMAND, without=without) for each in sources)
    by_file: dict[Path, Span] = {}
    for span in chain.from_iterable(found):
        by_file.setdefault(span.path.resolve(), span)
    spans = list(by_file.values())
    most = part_bytes(sum(span.size for span in spans))
    pieces = [piece for span in spans for piece in _pieces(span, column or COLUMN, most)]
    if column is not None and all(piece.kind == "text" for piece, _ in pieces):
        raise ValueError(
            f"--column {column} names the text of records, and {', '.join(sources)} holds text files alone, "
            f"each one document; leave --column out, or name files of {', '.join(KINDS)}"
        )
    parts: list[Part] = []
    held: list[Piece] = []
    size = 0
    for piece, weight in pieces:
        if held and size + weight > most:
            parts.append(Part(len(parts), tuple(held), size))
            held, size = [], 0
        held.append(piece)
        size += weight
    return [*parts, Part(len(parts), tuple(held), size)]


def part_bytes(total: int) -> int:
    """Bytes of a part of a corpus of `total` bytes, about."""
    return min(max(total // PARTS, SMALLEST), LARGEST)


def _pieces(span: Span, column: str, most: int) -> Iterator[tuple[Piece, int]]:
    if span.path.suffix in REFUSED:
        raise ValueError(f"{span.path} is packed; unpack it, or leave it out by --glob")
    kind = KINDS.get(span.path.suffix, "text")
    path = str(span.path.absolute())
    if kind == "rows":
        yield from _row_groups(path, column)
        return
    with open_text(span.path, COMMAND) as file:
        head = file.read(HEAD)
        line = head[: head.find(b"\n")] if b"\n" in head else head + file.readline()
    if b"\0" in head:
        raise ValueError(f"{span.path} is a binary file; name text files, as by --glob '**/*.txt'")
    if kind == "text":
        yield Piece(path, kind, 0, span.size), span.size
        return
    _text_of(f"line 1 of {path}", line, column)
    for start in range(0, span.size, most):
        stop = min(start + most, span.size)
        yield Piece(path, kind, start, stop), stop - start


def _row_groups(path: str, column: str) -> Iterator[tuple[Piece, int]]:
    metadata = _parquet(path, column).metadata
    for group in range(metadata.num_row_groups):
        yield Piece(path, "rows", group, group + 1), metadata.row_group(group).total_byte_size


def _parquet(path: str, column: str) -> Any:
    file = open_parquet(Path(path))
    kinds = library("pyarrow.types", "pyarrow", "Parquet files")
    schema = file.schema_arrow
    if column not in schema.names:
        raise ValueError(
            f"{path} has columns {', '.join(schema.names)} and no {column!r}; name one as --column"
        )
    kind = schema.field(column).type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind)):
        raise ValueError(f"column {column!r} of {path} holds {kind} and no text; name another as --column")
    return file


def documents(part: Part, column: str) -> Iterator[Document]:
    """The documents of a part, in order; a null is an empty text.

    Raises:
        ValueError: invalid text, or a record without it, with its place.
    """
    for piece in part.pieces:
        if piece.kind == "text":
            span = Span(Path(piece.path), piece.path, piece.start, piece.stop)
            yield piece.path, (text for _, text in read_blocks(span, COMMAND))
        elif piece.kind == "lines":
            yield from _lines(piece, column)
        else:
            yield from _rows(piece, column)


def _lines(piece: Piece, column: str) -> Iterator[Document]:
    with open_text(Path(piece.path), COMMAND) as file:
        if piece.start:
            file.seek(piece.start - 1)
            file.readline()  # the line that began before belongs to the piece before
        while (at := file.tell()) < piece.stop:
            line = file.readline()
            if line.strip():
                place = f"the line at byte {at} of {piece.path}"
                yield place, (_text_of(place, line, column),)


def _text_of(place: str, line: bytes, column: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from error
    if isinstance(record, dict) and column in record and record[column] is None:
        return ""
    if not isinstance(record, dict) or not isinstance(record.get(column), str):
        raise ValueError(
            f"{place} holds no text in {column!r} ({_has(record, column)}); name another as --column"
        )
    try:
        record[column].encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place} holds half a surrogate pair at character {error.start} of {column!r}, which is no "
            "character; write the text as UTF-8, or leave the record out"
        ) from error
    return str(record[column])


def _has(record: object, column: str) -> str:
    if not isinstance(record, dict):
        return "it is no object"
    if column in record:
        return f"it holds {json.dumps(record[column])[:80]} there"
    return f"it has {', '.join(map(str, record))}"


def _rows(piece: Piece, column: str) -> Iterator[Document]:
    file = _parquet(piece.path, column)
    for group in range(piece.start, piece.stop):
        values = file.read_row_group(group, columns=[column]).column(0)
        for number, value in enumerate(values):
            yield f"row {number} of row group {group} of {piece.path}", (value.as_py() or "",)
