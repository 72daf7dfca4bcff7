"""Data positions in a checkpoint: what every reader's stream stands at, with the share that reader read."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from dew.data.dataset import DataPartition
from dew.data.position import saved_fingerprint
from dew.training.distributed import gather_bytes


def packed_position(saved: bytes | None, share: DataPartition | None) -> list[dict[str, Any]]:
    """Every process's position as JSON records, one for each share; all processes take part."""
    if saved is None or share is None:
        return []
    own = json.dumps(_record(saved, share.index, share.count)).encode()
    records = [json.loads(text) for text in gather_bytes(own)]
    shares = {(record["index"], record["count"]): record for record in records}
    return [shares[key] for key in sorted(shares)]


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
        f"{share.index} of {share.count}; resume on as many data shares as wrote it, or start a new run on a "
        "grain.MapDataset, whose position every number of shares continues from"
    )


def fingerprint_in(records: list[dict[str, Any]]) -> Mapping[str, Any]:
    """What identifies the data that the positions were saved on; empty where there is none."""
    return saved_fingerprint(base64.b64decode(records[0]["state"])) if records else {}


def _record(saved: bytes, index: int, count: int) -> dict[str, Any]:
    return {"index": index, "count": count, "state": base64.b64encode(saved).decode()}
