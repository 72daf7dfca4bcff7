"""Tokenized text in Dew's cache folder: built once for the same files and tokenizer, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from dew.config.cache import dew_cache_dir
from dew.data.text.corpus import Corpus, Span
from dew.data.text.encode import encode_spans
from dew.data.text.tokenizer import Tokenizer
from dew.data.tokens.store import CorpusMeta, CorpusWriter

RECIPE = 1
"""Rises when the same files and tokenizer come to other ids."""
ABANDONED_S = 24 * 3600.0
"""A half-written folder older than this belongs to no living process."""

log = logging.getLogger(__name__)


def tokenized(corpus: Corpus, tokenizer: Tokenizer) -> tuple[Path, CorpusMeta]:
    """The corpus folder of `corpus` in `tokenizer`'s ids, from the cache or built now.

    A folder appears under its name complete or not at all, so two processes may build the same one: the later
    takes the earlier's. A changed size, modification time, name or tokenizer makes another folder.
    """
    base = dew_cache_dir() / "text"
    directory = base / _key(corpus, tokenizer)
    meta = _complete(directory)
    if meta is not None:
        return directory, meta
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=base))
    try:
        _build(draft, corpus, tokenizer)
        _publish(draft, directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory, CorpusMeta.read(directory)


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


def _publish(draft: Path, directory: Path) -> None:
    try:
        draft.rename(directory)
    except OSError:
        if _complete(directory) is None:  # neither ours nor another process's: the folder there is damaged
            shutil.rmtree(directory)
            draft.rename(directory)


def _complete(directory: Path) -> CorpusMeta | None:
    try:
        return CorpusMeta.read(directory)
    except (FileNotFoundError, ValueError):
        return None  # missing or damaged: a cache is rebuilt, not trusted


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    splits = {"train": corpus.train, "val": corpus.val}
    record = {
        "recipe": RECIPE,
        "tokenizer": tokenizer.fingerprint(),
        "splits": {split: [_identity(span) for span in spans] for split, spans in splits.items()},
    }
    return hashlib.blake2b(json.dumps(record).encode(), digest_size=16).hexdigest()


def _identity(span: Span) -> tuple[str, int, int, int, int]:
    found = span.path.stat()
    return (os.path.abspath(span.path), found.st_size, found.st_mtime_ns, span.start, span.stop)


def _sweep(base: Path) -> None:
    for draft in base.glob(".draft-*"):
        try:
            if time.time() - draft.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(draft, ignore_errors=True)
        except FileNotFoundError:
            continue
