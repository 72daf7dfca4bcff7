"""Measure packing documents into rows: planning, opening a corpus and reading batches, one JSON line.

    uv run python benchmarks/packed_tokens.py [--documents 1000000] [--seq-len 2048] [--planning-only]
        [--store bin|array_record|parquet]

The planning is that of `PackingPlan.over`, from the documents' bounds to the pieces of every row. The
documents have log-normal lengths (median 403 ids, sigma 1.2) and random ids of two bytes, from a fixed seed.
Reading is in the process itself, batches of 64 rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from results import report

from dew.data import DataPartition, PackedTokens
from dew.data.tokens.packing import PackingPlan

ROWS, BATCHES = 64, 30
GROUP = 1000
"""Documents of a row group."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--planning-only", action="store_true", help="write and read no ids")
    parser.add_argument("--store", choices=STORES, default="bin")
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(6, 1.2, arguments.documents).astype(np.int64), 2, None)
    if arguments.planning_only:
        report("packed_tokens", **vars(arguments), **planning(lengths, arguments.seq_len))
        return
    with tempfile.TemporaryDirectory() as name:
        ids = draw.integers(1, 60_000, int(lengths.sum())).astype(np.uint16)
        ids[np.cumsum(lengths) - 1] = 0
        STORES[arguments.store](Path(name), ids, lengths)
        planned = planning(lengths, arguments.seq_len)
        read = reading(name, arguments.seq_len)
        report("packed_tokens", **vars(arguments), ids=len(ids), **planned, **read)


def write_bin(folder: Path, ids: np.ndarray, lengths: np.ndarray) -> None:
    ids.tofile(folder / "train.bin")


def write_array_record(folder: Path, ids: np.ndarray, lengths: np.ndarray) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "train.array_record"), "group_size:1")
    for document in np.split(ids, np.cumsum(lengths)[:-1]):
        writer.write(document.tobytes())
    writer.close()


def write_parquet(folder: Path, ids: np.ndarray, lengths: np.ndarray) -> None:
    import pyarrow
    import pyarrow.parquet

    offsets = pyarrow.array(np.concatenate([[0], np.cumsum(lengths)]), pyarrow.int64())
    table = pyarrow.table({"tokens": pyarrow.LargeListArray.from_arrays(offsets, pyarrow.array(ids))})
    pyarrow.parquet.write_table(table, folder / "train.parquet", row_group_size=GROUP)


STORES = {"bin": write_bin, "array_record": write_array_record, "parquet": write_parquet}


def planning(lengths: np.ndarray, seq_len: int) -> dict[str, float]:
    """CPU seconds of the plan, its ids and rows, and the share of the slots it fills."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    began = time.process_time()
    counts = PackingPlan.over(bounds, seq_len=seq_len).counts
    seconds = time.process_time() - began
    filled = counts.filled / counts.slots
    return {"planning_cpu_s": round(seconds, 2), "rows": counts.rows, "filled": round(filled, 4)}


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
