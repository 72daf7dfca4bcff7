"""Which emergency copy the processes of a run go on from: the newest that all of them hold whole.

Every process tells the others, on the pool's board, which copies it holds and which of them it cannot use; no
device takes part. All come to the same answer from the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dew.training import pool
from dew.training.checkpoint_errors import DamagedCheckpoint
from dew.training.shard_store import ShardStore

TORN = "holds a torn one"
NONE = "holds none"


def agreed_copy(
    store: ShardStore | None, *, above: int, fault: Callable[[int], str | None]
) -> tuple[int | None, list[str]]:
    """The newest copy past step `above` that every process can use, or None; all processes call it.

    With it, a phrase for each newer copy, naming the first process that cannot use it.

    Args:
        store: of this process; None where it has no copies.
        above: the newest checkpoint, or -1.
        fault: why this process cannot use its whole copy of a step, completing "process 1"; None if it can.
    """
    texts = pool.exchange("the emergency copies", json.dumps(_inventory(store, above, fault)))
    held: list[dict[str, Any]] = [json.loads(text) for text in texts]
    passed: list[str] = []
    for step in sorted({int(name) for each in held for name in each}, reverse=True):
        why = _objection([each.get(str(step)) for each in held])
        if why is None:
            return step, passed
        passed.append(f"that of step {step}, since {why}")
    return None, passed


def _inventory(
    store: ShardStore | None, above: int, fault: Callable[[int], str | None]
) -> dict[int, dict[str, str | None]]:
    if store is None:
        return {}
    whole, torn = store.scan()
    told: dict[int, dict[str, str | None]] = {step: {"life": None, "fault": TORN} for step in torn}
    for step in whole:
        try:
            told[step] = {"life": store.record(step)["life"], "fault": fault(step)}
        except DamagedCheckpoint:
            told[step] = {"life": None, "fault": TORN}
    return {step: each for step, each in told.items() if step > above}


def _objection(told: list[dict[str, str | None] | None]) -> str | None:
    """Why a copy cannot be used, from what every process tells of it; None if it can."""
    for index, each in enumerate(told):
        if each is None or each["fault"] is not None:
            return f"process {index} of {len(told)} {NONE if each is None else each['fault']}"
    lives = [each["life"] for each in told if each is not None]
    other = next((index for index, life in enumerate(lives) if life != lives[0]), None)
    return None if other is None else f"process {other} of {len(told)} made it in another attempt at the run"
