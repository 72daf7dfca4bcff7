"""A corpus folder as a run opens it: checked against its `meta.json` and the run's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dew.data.tokens.source import TokenBytes
from dew.data.tokens.store import META, CorpusMeta, IdDtype, sampled_digest

if TYPE_CHECKING:
    from dew.data.text.tokenizer import Tokenizer

OTHER_STORES = {".array_record", ".arrayrecord", ".parquet"}
"""Suffixes of token stores that are no `.bin` file."""


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """An open folder of ids.

    Attributes:
        directory: the folder.
        dtype: width of an id.
        meta: what its `meta.json` says, or None where it has none.
        vocab_size: ids lie below it; None checks nothing.
        identity: tells these ids from others when a run is resumed.
    """

    directory: Path
    dtype: IdDtype
    meta: CorpusMeta | None
    vocab_size: int | None
    identity: dict[str, object]

    def has(self, split: str) -> bool:
        """Whether the folder holds `split`."""
        return (self.directory / f"{split}.bin").exists()

    def source(self, split: str) -> TokenBytes:
        """The ids of `split`."""
        return TokenBytes(self.directory / f"{split}.bin", self.dtype)


def open_corpus(path: str | None, dtype: IdDtype | None, tokenize: object) -> TokenCorpus:
    """Open the folder `path`.

    Args:
        path: the folder, `data.path` of a run.
        dtype: width of an id, `data.dtype` of a run; None reads it from `meta.json`.
        tokenize: the run's tokenizer, compared with the one that wrote the ids; None compares nothing.

    Raises:
        FileNotFoundError: the folder or its `train.bin` is not there.
        ValueError: no path, no known id width, another kind of store, or another tokenizer's ids.
        TypeError: `tokenize` is no tokenizer: ids need no reader of text.
    """
    if path is None:
        raise ValueError("data.path is not set; name the folder that holds train.bin and val.bin")
    directory = Path(path).expanduser()
    _require_corpus(directory)
    meta = CorpusMeta.read(directory) if (directory / META).exists() else None
    vocab_size = None if tokenize is None else _checked_vocabulary(tokenize, meta, directory)
    return TokenCorpus(
        directory=directory,
        dtype=_width(directory, dtype, meta),
        meta=meta,
        vocab_size=vocab_size,
        identity=_identity(directory, meta),
    )


def _require_corpus(directory: Path) -> None:
    if not directory.exists():
        raise FileNotFoundError(f"data.path={directory} is not there")
    if not directory.is_dir():
        raise ValueError(
            f"data.path={directory} is a file; for text use data:text, or name a folder of .bin files"
        )
    if (directory / "train.bin").exists():
        return
    others = sorted(p.name for p in directory.glob("train*") if p.suffix in OTHER_STORES)
    if others:
        raise ValueError(
            f"{directory / others[0]}: this kind of token store is not supported yet; write .bin files"
        )
    raise FileNotFoundError(f"{directory} holds no train.bin; for a folder of text use data:text")


def _width(directory: Path, dtype: IdDtype | None, meta: CorpusMeta | None) -> IdDtype:
    if meta is None:
        if dtype is None:
            raise ValueError(f"{directory} has no meta.json; say data.dtype: uint8, uint16 or uint32")
        return dtype
    if dtype is not None and dtype != meta.dtype:
        raise ValueError(
            f"data.dtype={dtype} is not what {directory / META} says: {meta.dtype}; leave it out"
        )
    return meta.dtype


def _identity(directory: Path, meta: CorpusMeta | None) -> dict[str, object]:
    files = {file.name: sampled_digest(file) for file in sorted(directory.glob("*.bin"))}
    if meta is None:
        return {"text": files}
    return {"text": {**files, "digest": meta.digest}, "tokenizer": meta.tokenizer_fingerprint}


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
