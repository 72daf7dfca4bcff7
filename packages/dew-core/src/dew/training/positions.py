"""Data positions in a checkpoint: what every reader's stream stands at, with the share that reader read."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from dew.data.dataset import DataPartition
from dew.data.position import saved_fingerprint


def packed_position(saved: bytes | None, share: DataPartition | None) -> list[dict[str, Any]]:
    """Every process's position as JSON records, one for each share; all processes take part."""
    if saved is None or share is None:
        return []
    if jax.process_count() == 1:
        return [_record(saved, share.index, share.count)]
    header = np.asarray([len(saved), share.index, share.count], np.int64)
    headers = multihost_utils.process_allgather(header)
    padded = np.zeros(int(headers[:, 0].max()), np.uint8)
    padded[: len(saved)] = np.frombuffer(saved, np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    records = {
        (int(index), int(count)): _record(row[:size].tobytes(), int(index), int(count))
        for (size, index, count), row in zip(headers, gathered, strict=True)
    }
    return [records[key] for key in sorted(records)]


def position_for(records: list[dict[str, Any]], share: DataPartition, where: str) -> bytes | None:
    """The position the reader of `share` continues from, or None where none was saved.

    A position that all shares have in common is global and serves any share; otherwise the share must be one
    of those that wrote it.

    Raises:
        ValueError: positions differ between shares and `share` is none of them.
    """
    if not records:
        return None
    if len({record["state"] for record in records}) == 1:
        return base64.b64decode(records[0]["state"])
    for record in records:
        if (record["index"], record["count"]) == (share.index, share.count):
            return base64.b64decode(record["state"])
    raise ValueError(
        f"{where} holds positions of {records[0]['count']} shares, each its own, and this run reads share "
        f"{share.index} of {share.count}; resume on as many data shares as wrote it"
    )


def fingerprint_in(records: list[dict[str, Any]]) -> Mapping[str, Any]:
    """What identifies the data that the positions were saved on; empty where there is none."""
    return saved_fingerprint(base64.b64decode(records[0]["state"])) if records else {}


def _record(saved: bytes, index: int, count: int) -> dict[str, Any]:
    return {"index": index, "count": count, "state": base64.b64encode(saved).decode()}
