"""What each token of a vocabulary spells, as units that strings are compared in.

A byte-level or byte-fallback vocabulary is spelled in bytes, since one character may be split over tokens.
Any other is spelled in characters: its decoder is asked for the token behind an ordinary prefix, because a
decoder adds or drops a space depending on what came before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from dew.data.text import ByteTokenizer, HFTokenizer

PREFIX = "abcdef"
"""Ordinary letters, which no decoder treats specially."""
BYTE = re.compile(r"<0x([0-9a-fA-F]{2})>")
KEPT = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
"""Bytes that the byte-level alphabet spells as the character of that number."""


@dataclass(frozen=True)
class Vocabulary[Units: (str, bytes)]:
    """The spelling of every token.

    Attributes:
        pieces: id -> what the token spells.
        units: a text in the same units.
    """

    pieces: Mapping[int, Units]
    units: Callable[[str], Units]

    @property
    def size(self) -> int:
        """Ids lie below it."""
        return max(self.pieces, default=-1) + 1


def vocabulary(tokenizer: object) -> Vocabulary[Any]:
    """The vocabulary of `tokenizer`.

    Args:
        tokenizer: one of Dew's, of the tokenizers library or of transformers, or a processor that holds one
            as `tokenizer`.

    Raises:
        TypeError: something else.
    """
    found: Any = tokenizer
    while not _readable(found) and getattr(found, "tokenizer", None) is not None:
        found = found.tokenizer
    if isinstance(found, ByteTokenizer):
        return Vocabulary({byte: bytes([byte]) for byte in range(found.vocab_size)}, str.encode)
    if isinstance(found, tokenizers.Tokenizer):
        return _of_backend(found)
    if isinstance(found, HFTokenizer):
        return _of_backend(found.backend)
    if getattr(found, "backend_tokenizer", None) is not None:
        return _of_backend(found.backend_tokenizer)
    if _readable(found):
        base = found.convert_ids_to_tokens(found.encode(PREFIX, add_special_tokens=False))
        return _characters(found.get_vocab(), found.convert_tokens_to_string, base)
    raise TypeError(
        f"{type(tokenizer).__name__} is no tokenizer whose tokens can be read; give a ByteTokenizer, an "
        "HFTokenizer, one of transformers, or a processor that holds one"
    )


def byte_alphabet() -> dict[str, int]:
    """Character -> byte, in the byte-level alphabet of GPT-2.

    Printable Latin-1 characters stand for their own byte; the others are the characters from 256 on, in
    order.
    """
    kept = {byte for each in KEPT for byte in each}
    others = iter(range(256, 512))
    return {chr(byte if byte in kept else next(others)): byte for byte in range(256)}


def _readable(candidate: object) -> bool:
    own = (ByteTokenizer, HFTokenizer, tokenizers.Tokenizer)
    return isinstance(candidate, own) or hasattr(candidate, "convert_tokens_to_string")


def _of_backend(backend: tokenizers.Tokenizer) -> Vocabulary[Any]:
    """The vocabulary of a tokenizer of the tokenizers library."""
    kinds = set(_types(json.loads(backend.to_str())["decoder"]))
    tokens: Mapping[str, int] = backend.get_vocab(with_added_tokens=True)
    decoder = backend.decoder

    def joined(pieces: Sequence[str]) -> str:
        return " ".join(pieces) if decoder is None else decoder.decode(list(pieces))

    base = backend.encode(PREFIX, add_special_tokens=False).tokens
    if "ByteFallback" in kinds:
        return _bytes(tokens, _fallback_byte, joined, base)
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        return _bytes(tokens, lambda token: _alphabet_bytes(token, alphabet), joined, base)
    return _characters(tokens, joined, base)


def _bytes(
    tokens: Mapping[str, int],
    spelled: Callable[[str], bytes | None],
    joined: Callable[[Sequence[str]], str],
    base: Sequence[str],
) -> Vocabulary[bytes]:
    pieces: dict[int, bytes] = {}
    for token, index in tokens.items():
        own = spelled(token)
        pieces[index] = _behind(joined, base, token).encode() if own is None else own
    return Vocabulary(pieces, str.encode)


def _characters(
    tokens: Mapping[str, int], joined: Callable[[Sequence[str]], str], base: Sequence[str]
) -> Vocabulary[str]:
    return Vocabulary({index: _behind(joined, base, token) for token, index in tokens.items()}, str)


def _behind(joined: Callable[[Sequence[str]], str], base: Sequence[str], token: str) -> str:
    """What `token` adds to the text of `base`. A vocabulary that cannot spell the prefix has another base."""
    before, text = joined(base), joined([*base, token])
    at = text.find(PREFIX)
    return text[at + len(PREFIX) :] if at >= 0 else text.removeprefix(before)


def _fallback_byte(token: str) -> bytes | None:
    match = BYTE.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


def _alphabet_bytes(token: str, alphabet: Mapping[str, int]) -> bytes | None:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # an added token may spell itself
        return None


def _types(config: Any) -> list[str]:
    """Every `type` in a nested description of a decoder."""
    if isinstance(config, dict):
        own = [config["type"]] if isinstance(config.get("type"), str) else []
        return own + [each for value in config.values() for each in _types(value)]
    return [each for value in config for each in _types(value)] if isinstance(config, list) else []
