"""What the processes of a run must have in common: its plan, and the shapes of every global batch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import jax

from dew.training import board, pool

LOOK_S = 0.1
"""Seconds between two looks at whether another process has come to the same batch."""


def agree(what: str, facts: Mapping[str, object]) -> None:
    """Go on where all processes hold the same `facts`; every process calls it.

    Raises:
        ValueError: they do not; names the first process and the facts that differ from process zero's.
    """
    texts = pool.exchange(what, json.dumps(dict(facts), default=repr))
    first: dict[str, object] = json.loads(texts[0])
    for index, text in enumerate(texts):
        other: dict[str, object] = json.loads(text)
        differing = [name for name in first if other.get(name) != first[name]]
        if differing:
            theirs, ours = (
                ", ".join(f"{name}={held.get(name)!r}" for name in differing) for held in (other, first)
            )
            raise ValueError(
                f"{what} differs between processes: process {index} has {theirs} and process 0 has {ours}; "
                "give every process the same, and a checkpoint folder that they share"
            )


class BatchAgreement:
    """Refuses a batch that is not of the same shapes on all processes, before a step waits for it in vain.

    The first batch is compared by all. After that a process speaks up only when its batch has shapes that
    were not agreed on before, and goes on once all others say the same of theirs.
    """

    def __init__(self) -> None:
        self._agreed: set[str] = set()
        self._count = 0

    def check(self, batch: Any) -> None:
        """Take the next global batch.

        Raises:
            ValueError: other processes hold batches of other shapes.
            PoolFailure: another process failed.
        """
        if jax.process_count() == 1:
            return
        pool.check()
        shapes = described(batch)
        if not self._agreed:
            agree("the first batch", shapes)
        elif (text := json.dumps(shapes)) not in self._agreed:
            self._compare(text)
        self._agreed.add(json.dumps(shapes))
        self._count += 1
        pool.joined().batches = self._count

    def _compare(self, text: str) -> None:
        watch, index = pool.joined(), jax.process_index()
        place = f"shapes/{watch.scope}/{self._count}"
        board.post(f"{place}/{index}", text)
        with pool.waiting(f"the other processes at batch {self._count + 1}", times=2.0):
            while True:
                # Beats first: who has passed this batch by then has posted its shapes before.
                beats = board.read("beats")
                said = board.read(place)
                if len(said) >= jax.process_count():
                    break
                pool.check()
                passed = [other for other, beat in beats.items() if int(beat.split()[1]) > self._count]
                if any(other not in said for other in passed):
                    self._refuse(text, "those agreed on before")
                time.sleep(LOOK_S)
        for other in said.values():
            if other != text:
                self._refuse(text, other)

    def _refuse(self, mine: str, others: str) -> None:
        raise ValueError(
            f"batch {self._count + 1} is {mine} as process {jax.process_index()} reads it, and others read "
            f"{others}; every process must bring the same number of rows of the same shapes and dtypes"
        )


def described(batch: Any, *, of_rows: bool = False) -> dict[str, str]:
    """Dtype and shape of every array of a batch, or of each of its rows, by the array's path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape[of_rows:])}"
        for path, leaf in jax.tree.leaves_with_path(batch)
    }
