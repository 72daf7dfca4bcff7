"""Encode the spans of a split into a corpus folder, in blocks, so that memory does not grow with the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import batched, chain
from typing import Protocol, runtime_checkable

from dew.data.text.corpus import Span
from dew.data.text.pieces import Cut, pieces, safe_cuts
from dew.data.text.reading import read_blocks
from dew.data.text.tokenizer import ByteTokenizer, Tokenizer
from dew.data.tokens.store import CorpusWriter

PIECES_AT_ONCE = 64


@runtime_checkable
class BatchEncoder(Protocol):
    """A tokenizer that encodes many texts at once."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


def encode_spans(writer: CorpusWriter, split: str, spans: Iterable[Span], tokenizer: Tokenizer) -> None:
    """Append the ids of each span to `split`, and the tokenizer's end id after each where it has one.

    The ids of a span are those of its whole text, whatever the size of the blocks or the number of cores.

    Raises:
        PermissionError: a file may not be read.
        ValueError: a binary file, invalid UTF-8, or a text the tokenizer gives no place to cut.
    """
    cuts: tuple[Cut, ...] | None = None
    for span in spans:
        if isinstance(tokenizer, ByteTokenizer):
            for block, _ in read_blocks(span):
                writer.append(split, block)
            continue
        texts = (text for _, text in read_blocks(span))
        head = next(texts)
        if cuts is None:
            cuts = safe_cuts(tokenizer.encode, head)
        try:
            for ids in _encoded(tokenizer, pieces(chain([head], texts), cuts)):
                writer.append(split, ids)
        except ValueError as error:
            raise error if str(span.path) in str(error) else ValueError(f"{span.path}: {error}") from error
        if tokenizer.eos_id is not None:
            writer.append(split, [tokenizer.eos_id])


def _encoded(tokenizer: Tokenizer, texts: Iterator[str]) -> Iterator[list[int]]:
    for group in batched(texts, PIECES_AT_ONCE):
        if isinstance(tokenizer, BatchEncoder):
            yield list(chain.from_iterable(tokenizer.encode_batch(group)))
        else:
            yield list(chain.from_iterable(map(tokenizer.encode, group)))
