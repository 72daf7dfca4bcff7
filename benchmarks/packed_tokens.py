"""Measure packing documents into rows: planning, opening a corpus and reading batches, one JSON line.

    uv run python benchmarks/packed_tokens.py [--documents 1000000] [--seq-len 2048]

The documents have log-normal lengths (median 403 ids, sigma 1.2) and random ids of two bytes, from a fixed
seed. Reading is in the process itself, batches of 64 rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from results import report

from dew.data import DataPartition, PackedTokens
from dew.data.tokens.packing import cut_documents, first_fit

ROWS, BATCHES = 64, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(6, 1.2, arguments.documents).astype(np.int64), 2, None)
    with tempfile.TemporaryDirectory() as name:
        ids = draw.integers(1, 60_000, int(lengths.sum())).astype(np.uint16)
        ids[np.cumsum(lengths) - 1] = 0
        ids.tofile(Path(name) / "train.bin")
        planned = planning(lengths, arguments.seq_len)
        read = reading(name, arguments.seq_len)
        report("packed_tokens", **vars(arguments), ids=len(ids), **planned, **read)


def planning(lengths: np.ndarray, seq_len: int) -> dict[str, float]:
    """CPU seconds of the placement, and the share of the slots it fills."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    _, pieces = cut_documents(bounds, seq_len)
    began = time.process_time()
    rows = first_fit(pieces, seq_len + 1)
    seconds = time.process_time() - began
    filled = pieces.sum() / ((rows.max() + 1) * (seq_len + 1))
    return {"planning_cpu_s": round(seconds, 2), "filled": round(float(filled), 4)}


def reading(folder: str, seq_len: int) -> dict[str, float]:
    """Seconds to open the corpus, and predictions read a second."""
    began = time.perf_counter()
    spec = PackedTokens(path=folder, dtype="uint16", document_end=0, seq_len=seq_len)
    batches = spec.load(batch=ROWS).train(DataPartition())
    next(batches)
    opened = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    rate = BATCHES * ROWS * seq_len / (time.perf_counter() - opened)
    return {"opening_s": round(opened - began, 1), "predictions_per_second": round(rate)}


if __name__ == "__main__":
    main()
