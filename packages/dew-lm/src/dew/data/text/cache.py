"""Tokenized text in Dew's cache folder: built once for the same files and tokenizer, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path

from dew.data.text.corpus import Corpus, Span
from dew.data.text.encode import encode_spans
from dew.data.text.tokenizer import Tokenizer
from dew.data.tokens.built import built
from dew.data.tokens.files import file_identity
from dew.data.tokens.store import CorpusMeta, CorpusWriter

RECIPE = 2
"""Rises when the same files and tokenizer come to other ids."""

log = logging.getLogger(__name__)


def tokenized(corpus: Corpus, tokenizer: Tokenizer) -> tuple[Path, CorpusMeta]:
    """The corpus folder of `corpus` in `tokenizer`'s ids, from the cache or built now.

    A changed size, modification time, name or tokenizer makes another folder.
    """
    directory = built(
        "text", _key(corpus, tokenizer), lambda draft: _build(draft, corpus, tokenizer), is_complete
    )
    return directory, CorpusMeta.read(directory)


def is_complete(directory: Path) -> bool:
    """Whether a corpus folder is there and whole: a cache is rebuilt, not trusted."""
    try:
        CorpusMeta.read(directory)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _build(draft: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    began = time.monotonic()
    with CorpusWriter(
        draft,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        vocab_size=tokenizer.vocab_size,
        document_end=tokenizer.eos_id,
    ) as writer:
        encode_spans(writer, "train", corpus.train, tokenizer)
        encode_spans(writer, "val", corpus.val, tokenizer)
        meta = writer.finish()
    log.info("tokenized %s in %.1f s", meta.ids, time.monotonic() - began)


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    splits = {"train": corpus.train, "val": corpus.val}
    record = {
        "recipe": RECIPE,
        "tokenizer": tokenizer.fingerprint(),
        "splits": {split: [_identity(span) for span in spans] for split, spans in splits.items()},
    }
    return hashlib.blake2b(json.dumps(record).encode(), digest_size=16).hexdigest()


def _identity(span: Span) -> tuple[str, int, int, int, int]:
    return (*file_identity(span.path), span.start, span.stop)
