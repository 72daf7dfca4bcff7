"""`TokenWindows`: a run trains on windows of a corpus that is ids already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dew.data.config import IN_PROCESS, DatasetSpec, Loading

if TYPE_CHECKING:
    from pathlib import Path

    from dew.data.dataset import Dataset
    from dew.data.tokens.store import CorpusMeta


@dataclass(frozen=True, kw_only=True)
class TokenWindows(DatasetSpec):
    """Windows over a folder of `train.bin` and `val.bin`.

    The windows are memory-mapped, so the loader needs no workers.

    Attributes:
        path: the folder.
        seq_len: predictions per window; a window holds one id more, and neighbours share one id.
        val_windows: at most this many validation windows, spread evenly over `val.bin`; unset takes all.
        dtype: width of the ids where the folder has no `meta.json`; with one it may be left out.

    Raises:
        ValueError: a window of no prediction, or a cap below 1.
    """

    path: str | None = None
    seq_len: int = 1024
    val_windows: int | None = None
    dtype: Literal["uint8", "uint16", "uint32"] | None = None
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < 1:
            raise ValueError(f"data.seq_len={self.seq_len} must be at least 1")
        if self.val_windows is not None and self.val_windows < 1:
            raise ValueError(f"data.val_windows={self.val_windows} must be at least 1, or unset for all")

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the corpus.

        Args:
            batch: windows in a global batch.
            tokenize: the run's tokenizer, compared with the one that wrote the ids; None compares nothing.

        Raises:
            FileNotFoundError: the folder or its `train.bin` is not there.
            ValueError: no path, no known id width, another tokenizer's ids, or a split without a window.
            TypeError: `tokenize` is no tokenizer: ids need no reader of text.
        """
        from pathlib import Path

        from dew.data.tokens.windows import window_dataset

        if self.path is None:
            raise ValueError("data.path is not set; name the folder that holds train.bin and val.bin")
        directory = Path(self.path).expanduser()
        _require_corpus(directory)
        meta = _read_meta(directory)
        vocab_size = None if tokenize is None else _checked_vocabulary(tokenize, meta, directory)
        dtype = self.dtype or (meta.dtype if meta else None)
        if dtype is None:
            raise ValueError(f"{directory} has no meta.json; say data.dtype: uint8, uint16 or uint32")
        if meta is not None and dtype != meta.dtype:
            raise ValueError(
                f"data.dtype={dtype} is not what {directory / 'meta.json'} says: {meta.dtype}; leave it out"
            )
        return window_dataset(
            directory,
            dtype=dtype,
            seq_len=self.seq_len,
            batch=batch,
            seed=self.seed,
            val_windows=self.val_windows,
            loading=self.loading,
            identity=_identity(directory, meta),
            vocab_size=vocab_size,
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
    others = sorted(p.name for p in directory.glob("train*") if p.suffix in {".array_record", ".parquet"})
    if others:
        raise ValueError(
            f"{directory / others[0]}: this kind of token store is not supported yet; write .bin files"
        )
    raise FileNotFoundError(f"{directory} holds no train.bin; for a folder of text use data:text")


def _read_meta(directory: Path) -> CorpusMeta | None:
    from dew.data.tokens.store import META, CorpusMeta

    return CorpusMeta.read(directory) if (directory / META).exists() else None


def _identity(directory: Path, meta: CorpusMeta | None) -> dict[str, object]:
    from dew.data.tokens.store import sampled_digest

    files = {file.name: sampled_digest(file) for file in sorted(directory.glob("*.bin"))}
    if meta is None:
        return {"text": files}
    return {"text": {**files, "digest": meta.digest}, "tokenizer": meta.tokenizer_fingerprint}


def _checked_vocabulary(tokenizer: object, meta: CorpusMeta | None, directory: Path) -> int:
    from dew.data.text.tokenizer import Tokenizer

    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenize={tokenizer!r}: {directory} holds ids, which need no reader of text")
    if meta is not None and meta.tokenizer_fingerprint != tokenizer.fingerprint():
        raise ValueError(
            f"the ids of {directory} were written with the tokenizer {meta.tokenizer!r} (vocabulary "
            f"{meta.vocab_size}), "
            f"not with {tokenizer.name!r} (vocabulary {tokenizer.vocab_size}); name that one as --tokenizer"
        )
    return tokenizer.vocab_size
