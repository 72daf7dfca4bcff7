"""`TokenWindows` and `PackedTokens`: a run trains on a corpus that is ids already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dew.data.chat.roles import RoleName, role_number
from dew.data.config import IN_PROCESS, Loading, RecordSpec

if TYPE_CHECKING:
    from dew.data.records import Records


@dataclass(frozen=True, kw_only=True)
class TokenWindows(RecordSpec):
    """Windows over the ids of a folder: its `train` and `val` files.

    A split is one `.bin` file, ArrayRecord shards or Parquet files; the same ids give the same windows in
    each.
    `.bin` files, and the copies that are made of Parquet columns, are memory-mapped, so their loader needs no
    workers. Ids at the end that fill no window are left out; the description of what is loaded says how many.

    Attributes:
        path: the folder.
        seq_len: predictions per window; a window holds one id more, and neighbours share one id.
        val_windows: at most this many validation windows, spread evenly over `val.bin`; unset takes all.
        dtype: width of the ids where the folder has no `meta.json`; with one, and for Parquet, it may be left
            out.
        column: of Parquet files, the one that holds the ids; unset takes the only one of lists of integers.
        role: give every token this role, and the rows the fields of conversations, so that they mix with
            them; unset adds nothing.

    Raises:
        ValueError: a window of no prediction, or a cap below 1.
    """

    path: str | None = None
    seq_len: int = 1024
    val_windows: int | None = None
    dtype: Literal["uint8", "uint16", "uint32"] | None = None
    column: str | None = None
    role: RoleName | None = None
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_rows(self.seq_len, "val_windows", self.val_windows)

    def records(self, *, tokenize: object = None) -> Records:
        """Open the corpus.

        Args:
            tokenize: the run's tokenizer, compared with the one that wrote the ids; None compares nothing.

        Raises:
            FileNotFoundError: the folder or its training split is not there.
            ImportError: the store needs a library that is not installed.
            ValueError: no path, no known id width, another tokenizer's ids, or a split without a window.
            TypeError: `tokenize` is no tokenizer: ids need no reader of text.
        """
        from dew.data.tokens.corpus import open_corpus
        from dew.data.tokens.windows import window_records

        corpus = open_corpus(self.path, self.dtype, tokenize, self.column)
        return window_records(
            corpus.source("train"),
            corpus.splits.get("val"),
            seq_len=self.seq_len,
            seed=self.seed,
            val_windows=self.val_windows,
            identity=corpus.identity,
            vocab_size=corpus.vocab_size,
            role=role_number(self.role),
        )


@dataclass(frozen=True, kw_only=True)
class PackedTokens(RecordSpec):
    """Documents of a folder, its `train` and `val` files, packed into rows.

    A row holds `seq_len + 1` ids of one document or more, and no document sees another. Which documents share
    a row is decided once, by first fit in the order of the corpus (`dew.data.tokens.packing`); each epoch
    shuffles the rows. Every id but a document's first is predicted once an epoch: a document longer than a
    row is cut into pieces that share one id, and one of a single id is left out; the description of
    what is loaded counts both. The stores are those of `TokenWindows`, and the same ids make the same plan
    in each.

    Attributes:
        path: the folder.
        seq_len: predictions in a row without padding.
        val_rows: at most this many validation rows, spread evenly over those of `val.bin`; unset takes all.
        document_end: the id that ends a document; unset takes what `meta.json` says, and without that each
            record of ArrayRecord or Parquet files.
        dtype: width of the ids where the folder has no `meta.json`; with one, and for Parquet, it may be left
            out.
        column: of Parquet files, the one that holds the ids; unset takes the only one of lists of integers.
        role: give every token this role, so that the rows mix with conversations; unset adds nothing.

    Raises:
        ValueError: a row of no prediction, a cap below 1, or a negative `document_end`.
    """

    path: str | None = None
    seq_len: int = 1024
    val_rows: int | None = None
    document_end: int | None = None
    dtype: Literal["uint8", "uint16", "uint32"] | None = None
    column: str | None = None
    role: RoleName | None = None
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_rows(self.seq_len, "val_rows", self.val_rows)
        if self.document_end is not None and self.document_end < 0:
            raise ValueError(f"data.document_end={self.document_end} must be an id, 0 or more")

    def records(self, *, tokenize: object = None) -> Records:
        """Open the corpus and plan its rows.

        Args:
            tokenize: the run's tokenizer, compared with the one that wrote the ids; None compares nothing.

        Raises:
            FileNotFoundError: the folder or its training split is not there.
            ImportError: the store needs a library that is not installed.
            ValueError: no path, no known id width or document end, another tokenizer's ids, or a split
                without a document of two ids.
            TypeError: `tokenize` is no tokenizer: ids need no reader of text.
        """
        from dew.data.tokens.corpus import open_corpus
        from dew.data.tokens.packed import packed_records
        from dew.data.tokens.source import RecordedSource

        corpus = open_corpus(self.path, self.dtype, tokenize, self.column)
        said = None if corpus.meta is None else corpus.meta.document_end
        end = said if self.document_end is None else self.document_end
        if end is None and not all(isinstance(each, RecordedSource) for each in corpus.splits.values()):
            raise ValueError(
                f"nothing says where the documents of {corpus.directory} end; set data.document_end to the "
                "id that ends each, or read it with data:token-windows"
            )
        return packed_records(
            corpus,
            document_end=end,
            seq_len=self.seq_len,
            seed=self.seed,
            val_rows=self.val_rows,
            role=role_number(self.role),
        )


def _require_rows(seq_len: int, cap: str, most: int | None) -> None:
    if seq_len < 1:
        raise ValueError(f"data.seq_len={seq_len} must be at least 1")
    if most is not None and most < 1:
        raise ValueError(f"data.{cap}={most} must be at least 1, or unset for all")
