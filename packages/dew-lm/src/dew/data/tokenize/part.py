"""One part, from its documents to committed files: its ids, and length and hash of every document.

`00007.ids` holds ids as a `.bin` file does, `00007.docs` a record for each document. `00007.json` comes into
place once both are on the disk: a part without it does not exist.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import batched, chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from dew.data.text.encode import BatchEncoder
from dew.data.text.pieces import Cut, pieces, safe_cuts
from dew.data.text.tokenizer import ByteTokenizer, Tokenizer
from dew.data.tokenize.plan import Document, Part, documents
from dew.data.tokens.store import IdDtype, id_dtype

DOCUMENT = np.dtype([("ids", "<i8"), ("hash", "<u8")])
"""What `.docs` holds of each document: its number of ids, the end included, and a hash of its text."""
DRAFT = ".draft"
PIECES_AT_ONCE = 256


@dataclass(frozen=True)
class PartCounts:
    """What a part came to.

    Attributes:
        documents: with text.
        empty: without, left out.
        ids: of all documents.
        size: bytes that were read.
    """

    documents: int
    empty: int
    ids: int
    size: int


class PartFiles:
    """The files of a part in a folder.

    Args:
        folder: of the parts.
        number: of the part.
        dtype: width of an id.
    """

    def __init__(self, folder: Path, number: int, dtype: IdDtype) -> None:
        self.ids, self.docs, self.sheet = (
            folder / f"{number:05}.{suffix}" for suffix in ("ids", "docs", "json")
        )
        self.width = np.dtype(dtype).itemsize

    def counts(self) -> PartCounts | None:
        """What the part came to, or None where it is not committed whole, as it was written.

        Raises:
            ValueError: a sheet that says something else.
        """
        if not self.sheet.exists():
            return None
        try:
            said = dict(json.loads(self.sheet.read_bytes()))
            digest = str(said.pop("digest"))
            counts = PartCounts(**said)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self.sheet} does not describe a part ({error}); delete it, and its part is tokenized again"
            ) from error
        sizes = [each.stat().st_size if each.exists() else -1 for each in (self.ids, self.docs)]
        if sizes != [counts.ids * self.width, counts.documents * DOCUMENT.itemsize]:
            return None
        return counts if self._digest() == digest else None

    def commit(self, counts: PartCounts) -> None:
        """Put the part's sheet into place; its files are on the disk."""
        with written(self.sheet) as file:
            file.write(json.dumps({**asdict(counts), "digest": self._digest()}).encode())

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for each in (self.ids, self.docs):
            with each.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()


@contextmanager
def written(path: Path) -> Generator[IO[bytes]]:
    """A file that stands at `path` once it is whole and on the disk.

    Until then it has a name of this process's own, since a worker may outlive the run it worked for by a
    moment.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}{DRAFT}")
    with draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_part(folder: Path, part: Part, tokenizer: Tokenizer, *, column: str, end: int | None) -> PartCounts:
    """Tokenize `part` and commit it.

    Args:
        folder: of the parts.
        part: which documents.
        tokenizer: makes the ids.
        column: of the text in JSONL and Parquet files.
        end: the id appended to every document, or None.

    Raises:
        ValueError: text that cannot be read, or that holds a given `end` itself, with its place.
    """
    dtype = id_dtype(tokenizer.vocab_size)
    files = PartFiles(folder, part.number, dtype)
    stream = DocumentPieces(documents(part, column), tokenizer)
    with written(files.ids) as out:
        lengths = _write_ids(out, stream, np.dtype(dtype).newbyteorder("<"), end)
    table = np.zeros(len(lengths), DOCUMENT)
    table["ids"], table["hash"] = lengths, stream.hashes
    with written(files.docs) as out:
        out.write(table.tobytes())
    counts = PartCounts(len(lengths), stream.empty, sum(lengths), part.size)
    files.commit(counts)
    return counts


def _write_ids(out: IO[bytes], stream: DocumentPieces, kind: np.dtype[Any], end: int | None) -> list[int]:
    lengths: list[int] = []
    ending = b"" if end is None else np.asarray([end], kind).tobytes()
    for group in batched(stream, PIECES_AT_ONCE):
        encoded = stream.encode([text for _, _, text in group])
        for (number, place, text), found in zip(group, encoded, strict=True):
            ids = np.asarray(found).astype(kind)
            if end is not None and end != stream.spelled_end and (ids == end).any():
                raise ValueError(_end_within(end, place, text))
            if number == len(lengths):
                out.write(ending if lengths else b"")
                lengths.append(end is not None)
            lengths[-1] += len(ids)
            out.write(ids.tobytes())
    out.write(ending if lengths else b"")
    return lengths


def _end_within(end: int, place: str, text: str) -> str:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return (
        f"--document-end {end}: {place} holds this id in its text, after {shown!r}, and packing would end a "
        "document there; choose an id that no text has"
    )


class DocumentPieces:
    """The pieces of documents, one after another, each with its document's number among those with text, and
    the document's place.

    Args:
        source: the documents.
        tokenizer: a piece ends where it gives the ids of the whole.

    Attributes:
        spelled_end: the tokenizer's own end of text, which ends a document wherever a text spells it out.
        hashes: of the texts of the documents that are passed.
        empty: documents without text that are passed.
    """

    def __init__(self, source: Iterable[Document], tokenizer: Tokenizer) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._cuts: tuple[Cut, ...] | None = None
        self.spelled_end = tokenizer.eos_id
        self.hashes: list[int] = []
        self.empty = 0

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        for place, texts in self._source:
            digest = hashlib.blake2b(digest_size=8)
            seen = False
            try:
                for piece in self._cut(_hashed(texts, digest)):
                    yield len(self.hashes), place, piece
                    seen = True
            except ValueError as error:
                raise error if place in str(error) else ValueError(f"{place}: {error}") from error
            if seen:
                self.hashes.append(int.from_bytes(digest.digest()))
            else:
                self.empty += 1

    def encode(self, texts: Sequence[str]) -> Sequence[Any]:
        """The ids of each text."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        if isinstance(self._tokenizer, BatchEncoder):
            return self._tokenizer.encode_batch(texts)
        return [self._tokenizer.encode(text) for text in texts]

    def _cut(self, texts: Iterator[str]) -> Iterator[str]:
        if isinstance(self._tokenizer, ByteTokenizer):
            yield from texts
            return
        head = next(texts, None)
        if head is None:
            return
        if self._cuts is None:
            self._cuts = safe_cuts(self._tokenizer.encode, head)
        yield from pieces(chain([head], texts), self._cuts)


def _hashed(texts: Iterable[str], digest: hashlib.blake2b) -> Iterator[str]:
    for text in texts:
        if text:
            digest.update(text.encode())
            yield text
