"""Read a span of a file as checked UTF-8, a block at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from dew.data.text.corpus import RUN, Span, Words, open_text

BLOCK = 1 << 20
"""Bytes read at a time."""


def read_blocks(span: Span, words: Words = RUN) -> Iterator[tuple[bytes, str]]:
    """Yield the span's bytes in blocks of about 1 MiB with the text that became complete in each.

    A character that straddles two blocks appears in the later block's text. The texts together are the
    span's text. A byte-order mark at the file's beginning is no part of it.

    Args:
        span: bytes of a file.
        words: how messages name what the user can change.

    Raises:
        PermissionError: the file may not be read.
        ValueError: a NUL byte or invalid UTF-8, with the file and the byte's offset.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_text(span.path, words) as file:
        file.seek(span.start)
        offset = span.start
        while offset < span.stop:
            block = file.read(min(BLOCK, span.stop - offset))
            behind = offset + len(block)
            if not block:
                raise ValueError(
                    f"{span.path} became shorter while it was read; start again when nothing writes to it"
                )
            _refuse_binary(span, block, offset, words)
            block = block if offset else block.removeprefix(codecs.BOM_UTF8)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=behind >= span.stop)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{span.path} is not valid UTF-8 at byte {behind - len(block) - pending + error.start} "
                    f"({error.reason}); save it as UTF-8 (iconv -t UTF-8) or leave it out by {words.glob}"
                ) from error
            yield block, text
            offset = behind


def _refuse_binary(span: Span, block: bytes, offset: int, words: Words) -> None:
    at = block.find(b"\0")
    if at >= 0:
        raise ValueError(
            f"{span.path} is a binary file (a NUL byte at {offset + at}); name text files, as by "
            f"{words.glob} '**/*.txt'"
        )
