"""The folder of a token corpus: `train.bin`, `val.bin` and the `meta.json` that says what their ids are.

The splits may be ArrayRecord shards or Parquet files instead (`dew.data.tokens.records`).

A `.bin` file is the ids one after another as little-endian unsigned integers, nothing else. `meta.json`
holds their width, the tokenizer's name, fingerprint and vocabulary size, the id that ends a document, the
number of ids in each split and a digest of all ids.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self, cast, get_args

import numpy as np
import numpy.typing as npt

from dew.data.tokens.files import split_files

FORMAT = 1
META = "meta.json"

type IdDtype = Literal["uint8", "uint16", "uint32"]
ID_DTYPES = cast("tuple[IdDtype, ...]", get_args(IdDtype.__value__))


def id_dtype(vocab_size: int) -> IdDtype:
    """The narrowest width that holds ids below `vocab_size`."""
    return "uint8" if vocab_size <= 2**8 else "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True)
class CorpusMeta:
    """What `meta.json` says.

    Attributes:
        dtype: width of an id in the `.bin` files.
        tokenizer: name of the tokenizer that wrote them.
        tokenizer_fingerprint: identifies it.
        vocab_size: ids lie below it.
        ids: number of ids in each split.
        digest: identifies the ids of all splits.
        document_end: the id that stands at the end of every document, or None where nothing does.
        format: version of this layout.
    """

    dtype: IdDtype
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    ids: dict[str, int] = field(default_factory=dict[str, int])
    digest: str = ""
    document_end: int | None = None
    format: int = FORMAT

    @classmethod
    def read(cls, directory: Path) -> CorpusMeta:
        """Read `directory/meta.json` and check the split files against it.

        Raises:
            FileNotFoundError: no `meta.json`.
            ValueError: a record of another form, or a split whose file has another size.
        """
        path = directory / META
        try:
            meta = cls(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} does not describe a token corpus: {error}; delete the folder and write it again"
            ) from error
        if meta.format != FORMAT or meta.dtype not in ID_DTYPES:
            raise ValueError(
                f"{path} says format {meta.format} and dtype {meta.dtype!r}; this version reads "
                f"format {FORMAT} with "
                f"{', '.join(ID_DTYPES)}"
            )
        width = np.dtype(meta.dtype).itemsize
        for split, ids in meta.ids.items():
            file = directory / f"{split}.bin"
            if not file.exists() and split_files(directory, split) is not None:
                continue  # another store, whose ids are counted when it is opened
            size = file.stat().st_size if file.exists() else 0
            if size != ids * width:
                raise ValueError(
                    f"{file} holds {size} bytes where {path.name} says {ids} ids of {width}; "
                    f"delete the folder {directory} and write it again"
                )
        return meta


def checked_width(directory: Path, dtype: IdDtype | None, *, named: str = "dtype") -> IdDtype | None:
    """The width of the ids in `directory`: what its `meta.json` says, and without one `dtype`.

    Args:
        directory: the folder.
        dtype: what a caller says, or None.
        named: what the caller calls that, for the message.

    Raises:
        ValueError: the two differ, a `dtype` that is no width of ids, or a damaged `meta.json`.
    """
    if dtype is not None and dtype not in ID_DTYPES:
        raise ValueError(f"{named}={dtype!r} must be one of {', '.join(ID_DTYPES)}")
    if not (directory / META).exists():
        return dtype
    meta = CorpusMeta.read(directory)
    if dtype not in (None, meta.dtype):
        raise ValueError(f"{named}={dtype} is not what {directory / META} says: {meta.dtype}; leave it out")
    return meta.dtype


SAMPLES, SAMPLE = 1024, 4096
"""Pieces of a file that its digest reads, and bytes of each: a corpus of any size is told in milliseconds."""


def sampled_digest(file: Path) -> str:
    """Identifies a file by its size and by pieces spread evenly over it, all of it where it is small."""
    size = file.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with file.open("rb") as opened:
        for index in range(SAMPLES):
            start = (size - SAMPLE) * index // (SAMPLES - 1)
            opened.seek(max(0, start))
            digest.update(opened.read(SAMPLE if size > SAMPLES * SAMPLE else size))
            if size <= SAMPLES * SAMPLE:
                break
    return digest.hexdigest()


class CorpusWriter:
    """Writes a corpus folder, split by split; `meta.json` is written last, so a broken-off folder has none.

    Args:
        directory: an existing, empty folder.
        tokenizer: name of the tokenizer.
        tokenizer_fingerprint: identifies it.
        vocab_size: ids lie below it.
        document_end: the id that the caller appends to every document, or None.

    Raises:
        ValueError: a `document_end` outside the vocabulary.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tokenizer: str,
        tokenizer_fingerprint: str,
        vocab_size: int,
        document_end: int | None = None,
    ) -> None:
        if document_end is not None and not 0 <= document_end < vocab_size:
            raise ValueError(f"document_end={document_end} must be an id from 0 to {vocab_size - 1}, or None")
        self._directory = directory
        self._identity = (tokenizer, tokenizer_fingerprint, vocab_size)
        self._document_end = document_end
        self._dtype: IdDtype = id_dtype(vocab_size)
        self._ids: dict[str, int] = {}
        self._digest = hashlib.blake2b(digest_size=16)
        self._open: tuple[str, IO[bytes]] | None = None

    def append(self, split: str, ids: npt.NDArray[np.unsignedinteger] | list[int] | bytes) -> None:
        """Add `ids` to the end of `split`; `bytes` are ids below 256. Finish one split before the next.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        if isinstance(ids, bytes) and self._dtype == "uint8":
            data, count = ids, len(ids)
        else:
            wide = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
            if wide.size and not 0 <= int(wide.min()) <= int(wide.max()) < self._identity[2]:
                raise ValueError(
                    f"the tokenizer {self._identity[0]!r} gave ids {wide.min()}..{wide.max()} outside "
                    "its vocabulary "
                    f"of {self._identity[2]}"
                )
            data, count = wide.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes(), wide.size
        file = self._file(split)
        file.write(data)
        self._digest.update(data)
        self._ids[split] += count

    def count(self, split: str) -> int:
        """Number of ids written to `split`."""
        return self._ids.get(split, 0)

    def finish(self) -> CorpusMeta:
        """Close the splits, write `meta.json` and return what it says."""
        self._close()
        name, fingerprint, vocab_size = self._identity
        meta = CorpusMeta(
            dtype=self._dtype,
            tokenizer=name,
            tokenizer_fingerprint=fingerprint,
            vocab_size=vocab_size,
            ids=self._ids,
            digest=self._digest.hexdigest(),
            document_end=self._document_end,
        )
        draft = self._directory / f"{META}.draft"
        draft.write_text(json.dumps(asdict(meta), indent=2) + "\n")
        draft.replace(self._directory / META)
        return meta

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _file(self, split: str) -> IO[bytes]:
        if self._open is not None and self._open[0] == split:
            return self._open[1]
        if split in self._ids:
            raise ValueError(f"split {split!r} is already finished")
        self._close()
        self._ids[split] = 0
        self._digest.update(f"\0{split}\0".encode())
        self._open = (split, (self._directory / f"{split}.bin").open("wb"))
        return self._open[1]

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()
