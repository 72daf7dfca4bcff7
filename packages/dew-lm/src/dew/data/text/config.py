"""`TextFiles`: a run trains on text files, tokenized on first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dew.data.config import IN_PROCESS, Loading, RecordSpec

if TYPE_CHECKING:
    from pathlib import Path

    from dew.data.records import Records
    from dew.data.text.corpus import Corpus
    from dew.data.text.tokenizer import Tokenizer
    from dew.data.tokens.store import CorpusMeta


EVERYTHING = "**/*"
"""The glob that takes every file of a folder."""


@dataclass(frozen=True, kw_only=True)
class TextFiles(RecordSpec):
    """UTF-8 text: a file, a folder of files, or Python's own library sources.

    Windows are cut from the files' ids one after another. The ids are kept in Dew's cache folder and
    memory-mapped, so the loader needs no workers.

    Attributes:
        path: a file or a folder; unset reads the running Python's library sources without test and idlelib.
        glob: which files of a folder, relative to it; hidden files and folders are passed over.
        seq_len: predictions per window; a window holds one id more, and neighbours share one id.
        val_fraction: part of the bytes held out for validation, by whole files where the folder has enough of
            them, else from the end of the largest; 0 holds out nothing.
        val_windows: at most this many validation windows, spread evenly over the held-out text; unset takes
            all.
        max_bytes: read only the first bytes, in the order of the files' names; unset reads all, of Python's
            library the first 8 MB.

    Raises:
        ValueError: a number outside its range.
    """

    path: str | None = None
    glob: str = EVERYTHING
    seq_len: int = 256
    val_fraction: float = 0.05
    val_windows: int | None = None
    max_bytes: int | None = None
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < 1:
            raise ValueError(f"data.seq_len={self.seq_len} must be at least 1")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"data.val_fraction={self.val_fraction} must be at least 0 and below 1")
        for name in ("val_windows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"data.{name}={value} must be at least 1, or unset")

    def records(self, *, tokenize: object = None) -> Records:
        """Tokenize the text, or find it in the cache, and open its windows.

        Args:
            tokenize: the tokenizer; None takes the bytes.

        Raises:
            FileNotFoundError: nothing at `path`, or nothing that `glob` matches.
            PermissionError: a file or folder that may not be read.
            ValueError: empty, binary or invalid text, text without a window in each split, or a folder that
                holds ids.
            TypeError: `tokenize` is no tokenizer.
        """
        from dew.data.text.cache import tokenized
        from dew.data.text.tokenizer import ByteTokenizer, Tokenizer
        from dew.data.tokens.source import TokenBytes
        from dew.data.tokens.windows import window_records

        tokenizer = ByteTokenizer() if tokenize is None else tokenize
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenize={tokenize!r} is no tokenizer; load_tokenizer(name) makes one")
        directory, meta = tokenized(self.corpus(tokenizer), tokenizer)
        self._require_windows(meta)
        splits = {split: TokenBytes(directory / f"{split}.bin", meta.dtype) for split in meta.ids}
        return window_records(
            splits["train"],
            splits.get("val"),
            seq_len=self.seq_len,
            seed=self.seed,
            val_windows=self.val_windows,
            identity={"text": meta.digest, "tokenizer": meta.tokenizer_fingerprint},
        )

    def corpus(self, tokenizer: Tokenizer) -> Corpus:
        """What `load` tokenizes: the files, split into training and validation."""
        from dew.data.text import corpus
        from dew.data.text.tokenizer import ByteTokenizer

        if self.path is None:
            spans, limit = corpus.standard_library(), self.max_bytes or corpus.STDLIB_BYTES
        else:
            from pathlib import Path

            path = Path(self.path).expanduser()
            spans, limit = corpus.text_files(path, self.glob), self.max_bytes
            _refuse_ids(path)
            if path.is_file() and self.glob != EVERYTHING:
                raise ValueError(
                    f"data.glob={self.glob!r} chooses files of a folder, and data.path={self.path} is a "
                    "file; leave one out"
                )
        window_bytes = (self.seq_len + 1) * (1 if isinstance(tokenizer, ByteTokenizer) else 8)
        return corpus.hold_out(corpus.first_bytes(spans, limit), self.val_fraction, least=window_bytes)

    def _require_windows(self, meta: CorpusMeta) -> None:
        for split in ("train", "val") if self.val_fraction else ("train",):
            ids = meta.ids.get(split, 0)
            if ids <= self.seq_len:
                raise ValueError(
                    f"the text of {self.path or 'the Python library'} is too short: its {split} part "
                    f"has {ids} ids, and "
                    f"one window of data.seq_len={self.seq_len} takes {self.seq_len + 1}; use a "
                    "shorter data.seq_len, "
                    "more text, or another data.val_fraction"
                )


def _refuse_ids(path: Path) -> None:
    if (path / "meta.json").is_file() and (path / "train.bin").is_file():
        raise ValueError(
            f"data.path={path} holds ids that were tokenized before; read it with data:token-windows"
        )
