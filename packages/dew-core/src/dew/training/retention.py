"""Which checkpoints of a run are kept: the latest ones and the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def outdated(steps: Sequence[int], keep: int, ranks: Mapping[int, float | None]) -> list[int]:
    """The steps that may go: neither among the latest `keep` nor the best.

    Args:
        steps: in rising order.
        keep: how many of the latest stay.
        ranks: how good a step is, as `ranked` says; the newer of two equals is better.
    """
    scored = [(rank, step) for step in steps if (rank := ranks.get(step)) is not None]
    kept = {*steps[-keep:], *(step for _, step in sorted(scored)[-1:])}
    return [step for step in steps if step not in kept]


def ranked(metrics: Mapping[str, float] | None, higher_is_better: bool) -> float | None:
    """The first metric, so signed that more is better.

    None without metrics or where it is not a finite number.
    """
    first = next(iter((metrics or {}).values()), math.nan)
    if not math.isfinite(first):
        return None
    return float(first if higher_is_better else -first)


class LatestAndBest:
    """`outdated` as Orbax's preservation policy, for buckets, where Orbax deletes."""

    def __init__(self, keep: int, ranks: Mapping[int, float | None]) -> None:
        self._keep = keep
        self._ranks = ranks

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """One answer for each checkpoint, which come in rising order of their steps."""
        steps = [int(checkpoint.step) for checkpoint in checkpoints]
        gone = outdated(steps, self._keep, self._ranks)
        return [step not in gone for step in steps]
