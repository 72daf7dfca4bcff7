"""Axes: which range a chart shows and where its marks stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dew.telemetry.amounts import number, rate


@dataclass(frozen=True)
class Scale:
    """A range of values on an axis.

    Attributes:
        low, high: its ends, `low < high`.
        log: equal distances are equal ratios.
    """

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values within the range."""
        return log_ticks(self.low, self.high) if self.log else round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between `low` and `high`."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between `low` and `high`, with 2 and 5 times them where the range is short."""
    factors = (1, 2, 5) if high / low < 300 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high
    ]


def steps_scale(first: int, last: int, *, log: bool = False) -> Scale:
    """The axis of steps."""
    low = max(1, first) if log else first
    return Scale(low, max(last, low + 1), log)


def values_scale(values: Sequence[float]) -> tuple[Scale, bool]:
    """The axis of finite `values`, and whether its top is cut.

    Where the highest hundredth (as a rule a run's first steps) takes up most of the range, the axis ends
    below it, and the line leaves at the top.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    usual = ordered[int(0.99 * (len(ordered) - 1))]
    cut = len(ordered) >= 50 and usual - low < 0.4 * (high - low)
    top = usual if cut else high
    margin = 0.06 * (top - low) or 0.05 * abs(top) or 1.0
    return Scale(max(low - margin, 0.0) if low >= 0 else low - margin, top + margin), cut


def label(value: float) -> str:
    """A mark's text: short, thousands by letter."""
    return rate(value) if abs(value) >= 1000 else number(round(value, 12))
