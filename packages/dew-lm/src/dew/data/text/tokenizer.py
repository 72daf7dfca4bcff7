"""Tokenizers a run can name: one id per byte, or a `tokenizer.json` of the tokenizers library."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tokenizers

EOS_SPELLINGS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""End-of-text tokens by convention, for a `tokenizer.json` without the file that names its own."""
PAD_SPELLINGS = ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>")


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back.

    Attributes:
        name: what a configuration writes to get it.
        vocab_size: ids lie below it.
        eos_id: the id that ends a document, or None.
        pad_id: the id that fills a row, or None.
    """

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def pad_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with no special token added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        ...

    def fingerprint(self) -> str:
        """Identifies the mapping: equal for tokenizers that give the same ids and end documents alike."""
        ...


class ByteTokenizer:
    """The UTF-8 bytes of a text as its ids: a vocabulary of 256 without special ids."""

    name = "byte"
    vocab_size = 256
    eos_id: int | None = None
    pad_id: int | None = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: an id outside 0..255.
        """
        return bytes(ids).decode(errors="replace")

    def fingerprint(self) -> str:
        return "byte"

    def __repr__(self) -> str:
        return "ByteTokenizer()"


class HFTokenizer:
    """A `tokenizer.json` file of the tokenizers library, or a folder that holds one.

    End and padding ids come from the folder's `tokenizer_config.json`; without it from the usual spellings.
    `config` is what that file holds, empty without it.

    Args:
        path: the file or the folder.

    Raises:
        FileNotFoundError: neither is there.
        ValueError: the file is no `tokenizer.json`.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        self._file = tokenizer_file(Path(path).expanduser())
        self.backend = _read(self._file)
        self.backend.no_padding()
        self.backend.no_truncation()
        self.vocab_size = self._size()
        self.config = _config_beside(self._file)
        self.eos_id = self._special(self.config, "eos_token", EOS_SPELLINGS)
        self.pad_id = self._special(self.config, "pad_token", PAD_SPELLINGS)

    @property
    def folder(self) -> Path:
        """Where the file lies, with the files that say more about it."""
        return self._file.parent

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=True)

    @functools.cached_property
    def _digest(self) -> str:
        # The end id stands behind every document, and comes from a file beside the mapping's.
        said = f"{self.eos_id}\n{self.backend.to_str()}"
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def fingerprint(self) -> str:
        return self._digest

    def _size(self) -> int:
        # Ids may have gaps, so the count of entries can lie below the highest id.
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def _special(self, config: dict[str, Any], key: str, spellings: Sequence[str]) -> int | None:
        named = config.get(key)
        if isinstance(named, dict):
            named = named.get("content")
        for token in (named,) if named else spellings:
            found = self.backend.token_to_id(token)
            if found is not None:
                return found
        return None

    def __repr__(self) -> str:
        return f"HFTokenizer({self.name!r})"


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `name`: `byte`, or the path of a `tokenizer.json` or of a folder that holds one.

    Raises:
        FileNotFoundError: neither.
        ValueError: a file of another kind.
    """
    return ByteTokenizer() if name == "byte" else HFTokenizer(name)


def tokenizer_file(path: Path) -> Path:
    """The tokenizer file that `path` is, or that lies in the folder `path`.

    Raises:
        FileNotFoundError: there is none.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir():
        raise FileNotFoundError(f"tokenizer={path} is a folder without tokenizer.json")
    raise FileNotFoundError(
        f"tokenizer={path} is not there; write byte, or the path of a tokenizer.json or of a folder "
        "that holds one"
    )


def _read(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError:
        raise
    except Exception as error:  # the library raises bare Exception for any file it cannot read
        raise ValueError(
            f"tokenizer={file} is no tokenizer.json of the tokenizers library: {error}"
        ) from error


def _config_beside(file: Path) -> dict[str, Any]:
    path = file.parent / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no JSON object: {error}") from error
