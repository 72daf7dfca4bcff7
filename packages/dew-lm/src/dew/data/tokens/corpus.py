"""A corpus folder as a run opens it: checked against its `meta.json` and the run's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dew.data.tokens.files import SplitFiles, split_files
from dew.data.tokens.source import TokenBytes, TokenSource
from dew.data.tokens.store import META, CorpusMeta, IdDtype, checked_width, sampled_digest

if TYPE_CHECKING:
    from dew.data.text.tokenizer import Tokenizer

SPLITS = ("train", "val")


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """An open folder of ids.

    Attributes:
        directory: the folder.
        dtype: width of an id.
        meta: what its `meta.json` says, or None where it has none.
        vocab_size: ids lie below it; None checks nothing.
        identity: tells these ids from others when a run is resumed.
        splits: the ids of each split that is there.
    """

    directory: Path
    dtype: IdDtype
    meta: CorpusMeta | None
    vocab_size: int | None
    identity: dict[str, object]
    splits: Mapping[str, TokenSource]

    def has(self, split: str) -> bool:
        """Whether the folder holds `split`."""
        return split in self.splits

    def source(self, split: str) -> TokenSource:
        """The ids of `split`."""
        return self.splits[split]


def open_corpus(
    path: str | None, dtype: IdDtype | None, tokenize: object, column: str | None = None
) -> TokenCorpus:
    """Open the folder `path`.

    Args:
        path: the folder, `data.path` of a run.
        dtype: width of an id, `data.dtype` of a run; None reads it from `meta.json`.
        tokenize: the run's tokenizer, compared with the one that wrote the ids; None compares nothing.
        column: of Parquet files; None takes the only one that holds lists of integers.

    Raises:
        FileNotFoundError: the folder or its training split is not there.
        ImportError: the store needs a library that is not installed.
        ValueError: no path, no known id width, files that are no whole split, a `column` for another store,
            or another tokenizer's ids.
        TypeError: `tokenize` is no tokenizer: ids need no reader of text.
    """
    if path is None:
        raise ValueError("data.path is not set; name the folder that holds train.bin and val.bin")
    directory = Path(path).expanduser()
    files = _files(directory)
    meta = CorpusMeta.read(directory) if (directory / META).exists() else None
    vocab_size = None if tokenize is None else _checked_vocabulary(tokenize, meta, directory)
    kinds = {each.kind for each in files.values()}
    if column is not None and kinds != {"parquet"}:
        raise ValueError(
            f"data.column={column!r} is for Parquet files, and {directory} holds others; unset it"
        )
    width = _width(directory, dtype, needed=kinds != {"parquet"})
    splits = {split: _opened(each, width, column) for split, each in files.items()}
    _require_counts(directory, meta, splits)
    return TokenCorpus(
        directory=directory,
        dtype=width,
        meta=meta,
        vocab_size=vocab_size,
        identity=_identity(files, meta),
        splits=splits,
    )


def _files(directory: Path) -> dict[str, SplitFiles]:
    if not directory.exists():
        raise FileNotFoundError(f"data.path={directory} is not there")
    if not directory.is_dir():
        raise ValueError(
            f"data.path={directory} is a file; for text use data:text, or name a folder of .bin files"
        )
    found = {split: files for split in SPLITS if (files := split_files(directory, split)) is not None}
    if "train" not in found:
        raise FileNotFoundError(
            f"{directory} holds no train.bin, train.array_record or train.parquet; for a folder of text use "
            "data:text"
        )
    return found


def _opened(files: SplitFiles, dtype: IdDtype, column: str | None) -> TokenSource:
    if files.kind == "bin":
        return TokenBytes(files.paths[0], dtype)
    from dew.data.tokens.records import TokenColumn, TokenRecords

    if files.kind == "array_record":
        return TokenRecords(files.paths, dtype)
    return TokenColumn(files.paths, column, dtype)


def _require_counts(directory: Path, meta: CorpusMeta | None, splits: Mapping[str, TokenSource]) -> None:
    for split, ids in ({} if meta is None else meta.ids).items():
        if split in splits and len(splits[split]) != ids:
            raise ValueError(
                f"{directory} holds {len(splits[split])} ids of {split} where {META} says {ids}; write it "
                "again"
            )


def _width(directory: Path, dtype: IdDtype | None, *, needed: bool) -> IdDtype:
    width = checked_width(directory, dtype, named="data.dtype")
    if width is None and needed:
        raise ValueError(f"{directory} has no meta.json; say data.dtype: uint8, uint16 or uint32")
    return width or "uint32"


def _identity(files: Mapping[str, SplitFiles], meta: CorpusMeta | None) -> dict[str, object]:
    paths = sorted(path for each in files.values() for path in each.paths)
    told = {path.name: sampled_digest(path) for path in paths}
    if meta is None:
        return {"text": told}
    return {"text": {**told, "digest": meta.digest}, "tokenizer": meta.tokenizer_fingerprint}


def _checked_vocabulary(tokenizer: object, meta: CorpusMeta | None, directory: Path) -> int:
    checked = _tokenizer(tokenizer, directory)
    if meta is not None and meta.tokenizer_fingerprint != checked.fingerprint():
        raise ValueError(
            f"the ids of {directory} were written with the tokenizer {meta.tokenizer!r} (vocabulary "
            f"{meta.vocab_size}), "
            f"not with {checked.name!r} (vocabulary {checked.vocab_size}); name that one as --tokenizer"
        )
    return checked.vocab_size


def _tokenizer(tokenizer: object, directory: Path) -> Tokenizer:
    from dew.data.text.tokenizer import Tokenizer

    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenize={tokenizer!r}: {directory} holds ids, which need no reader of text")
    return tokenizer
