"""Which records each step of a run reads, where its batch grows over the first of them.

With `b` the batch at the start, `i` what a stage adds, `B` the last batch and `R` the records that the ramp
spans, there are `n = (B - b) / i` stages before the last, each of `R / n` records. A step that begins after
`r < R` records reads

    b + i * floor(r * n / R)

records, and `B` from `r = R` on. A step is never cut: a stage begins with the first step that starts at or
after its border.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dew.data.config import Ramp


@dataclass(frozen=True)
class Stage:
    """Steps of one size.

    Attributes:
        size: records in each.
        record: records before the first of them.
        step: steps before the first of them.
    """

    size: int
    record: int
    step: int


class Stages:
    """The stages of a run; without a ramp there is one.

    Args:
        batch: B, the global batch at the end.
        ramp: how it gets there, or None.

    Raises:
        ValueError: a ramp that does not end at `batch`.
    """

    def __init__(self, batch: int, ramp: Ramp | None = None) -> None:
        self.stages = tuple(_stages(batch, ramp))
        self._records = [stage.record for stage in self.stages]
        self._steps = [stage.step for stage in self.stages]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all steps, each once, in rising order."""
        return tuple(stage.size for stage in self.stages)

    def step(self, index: int) -> tuple[int, int]:
        """Records before step `index`, counted from 0, and records in it."""
        stage = self.stages[bisect_right(self._steps, index) - 1]
        return stage.record + (index - stage.step) * stage.size, stage.size

    def steps_within(self, records: int) -> int:
        """Whole steps in the first `records` records."""
        stage = self.stages[bisect_right(self._records, records) - 1]
        return stage.step + (records - stage.record) // stage.size

    def steps_begun(self, records: int) -> int:
        """Steps that begin within the first `records` records, a cut one included."""
        whole = self.steps_within(records)
        return whole + (self.step(whole)[0] < records)

    def step_at(self, record: int) -> int:
        """The step that begins after `record` records.

        Raises:
            ValueError: none does.
        """
        index = self.steps_within(record)
        first, size = self.step(index)
        if first != record:
            raise ValueError(
                f"no step begins after {record} records: the one there reads {size} from {first} on; "
                "resume with the batch and the ramp the position was saved with"
            )
        return index


def _stages(batch: int, ramp: Ramp | None) -> Iterator[Stage]:
    if ramp is None:
        yield Stage(batch, 0, 0)
        return
    ramp.check(batch)
    count = (batch - ramp.start) // ramp.increment
    record = step = 0
    for number in range(count):
        size = ramp.start + number * ramp.increment
        border = -(-(number + 1) * ramp.records // count)
        steps = max(0, -(-(border - record) // size))
        if steps:
            yield Stage(size, record, step)
        record, step = record + steps * size, step + steps
    yield Stage(batch, record, step)
