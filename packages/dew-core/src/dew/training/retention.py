"""Which checkpoints of a run are kept: the latest ones and the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


class LatestAndBest:
    """Orbax's preservation policy of a run.

    The latest steps and the best one. The newer of two equals is better.
    """

    def __init__(self, keep: int, ranks: Mapping[int, float | None]) -> None:
        self._keep = keep
        self._ranks = ranks

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """One answer for each checkpoint, which come in rising order of their steps."""
        steps = [int(checkpoint.step) for checkpoint in checkpoints]
        ranked = [(rank, step) for step in steps if (rank := self._ranks.get(step)) is not None]
        kept = {*steps[-self._keep :], *(step for _, step in sorted(ranked)[-1:])}
        return [step in kept for step in steps]


def ranked(metrics: Mapping[str, float] | None, higher_is_better: bool) -> float | None:
    """The first metric, so signed that more is better.

    None without metrics or where it is not a finite number.
    """
    first = next(iter((metrics or {}).values()), math.nan)
    if not math.isfinite(first):
        return None
    return float(first if higher_is_better else -first)
