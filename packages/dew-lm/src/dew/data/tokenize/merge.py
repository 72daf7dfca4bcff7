"""Committed parts as a corpus folder: which documents are held out, then the ids of each split in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dew.data.text.tokenizer import Tokenizer
from dew.data.tokenize.part import DOCUMENT, PartFiles
from dew.data.tokens.corpus import SPLITS
from dew.data.tokens.store import CorpusMeta, CorpusWriter, id_dtype

type Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Which documents are for validation: those with the smallest hashes of their text.

    So a document's copies lie on one side, and adding others moves few.

    Attributes:
        fraction: about this part of them, where `documents` is None.
        documents: this many, and the copies of the last of them.
    """

    fraction: float
    documents: int | None = None

    def of(self, hashes: npt.NDArray[np.uint64]) -> Bools:
        """[documents], which are held out."""
        if self.documents is None:
            return hashes < np.uint64(min(int(self.fraction * 2**64), 2**64 - 1))
        return hashes <= np.sort(hashes)[: self.documents].max(initial=0)


def merge_parts(
    folder: Path,
    parts: Sequence[int],
    out: Path,
    *,
    tokenizer: Tokenizer,
    end: int | None,
    held_out: HeldOut,
) -> CorpusMeta:
    """Write `train.bin`, `val.bin` and then `meta.json` into `out`.

    Args:
        folder: of the parts.
        parts: their numbers, in order.
        out: an existing folder.
        tokenizer: that made the ids.
        end: the id at the end of every document, or None.
        held_out: which documents are for validation.

    Raises:
        ValueError: no document at all, or none left for training.
    """
    dtype = id_dtype(tokenizer.vocab_size)
    files = [PartFiles(folder, number, dtype) for number in parts]
    tables = [np.fromfile(each.docs, DOCUMENT) for each in files]
    held = held_out.of(np.concatenate([table["hash"] for table in tables]))
    if not len(held):
        raise ValueError("no source holds a document with text; name others as PATH, or check --glob")
    if held.all():
        raise ValueError(
            f"all {len(held)} documents would be held out for validation; choose fewer with "
            "--val-documents, or none with --val-fraction 0"
        )
    borders = np.cumsum([len(table) for table in tables])[:-1]
    by_part = np.split(held, borders)
    for split in SPLITS:  # of a run that was stopped while it merged
        (out / f"{split}.bin").unlink(missing_ok=True)
    with CorpusWriter(
        out,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        vocab_size=tokenizer.vocab_size,
        document_end=end,
    ) as writer:
        for split, wanted in zip(SPLITS, (False, True), strict=True):
            for each, table, mask in zip(files, tables, by_part, strict=True):
                ids = np.fromfile(each.ids, np.dtype(dtype).newbyteorder("<"))
                for chosen in _runs(ids, table["ids"], mask == wanted):
                    writer.append(split, chosen)
        return writer.finish()


def _runs(ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], chosen: Bools) -> list[npt.NDArray[Any]]:
    """The ids of the chosen documents, neighbours together."""
    ends = np.cumsum(lengths)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    offsets = np.concatenate([[0], ends])
    return [ids[offsets[first] : offsets[last]] for first, last in edges.reshape(-1, 2)]
