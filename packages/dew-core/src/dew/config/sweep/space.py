"""The space of a sweep: dotted configuration fields, and the values each may take."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

RANGE = re.compile(r"(?P<low>[^,\[\]\"]+?)\.\.(?P<high>[^,\[\]\":]+)(?P<log>:log)?")
DIGITS = 6
"""Significant digits of a drawn number: more would tell no two trials apart."""


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Attributes:
        values: each what JSON can hold; all different.

    Raises:
        ValueError: no value, or one twice.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise ValueError("values=() must hold one value at least")
        written = [json.dumps(value) for value in self.values]
        twice = sorted({text for text in written if written.count(text) > 1})
        if twice:
            raise ValueError(f"values name {twice[0]} twice; keep one of them")

    def draw(self, source: random.Random) -> Any:
        """One of the values, each as likely."""
        return self.values[source.randrange(len(self.values))]

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that stand for all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two, both included; whole where both are.

    Attributes:
        low, high: the ends, `low < high`.
        log: equally likely by ratio, not by difference.

    Raises:
        ValueError: ends that are not finite, not in order, or not positive under `log`.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{name}={value!r} must be a finite number")
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}; write one value as a choice")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} must be above 0 on a logarithmic scale")

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, source: random.Random) -> float:
        """A value, uniform in its logarithm under `log`."""
        if self.whole and not self.log:
            return source.randint(int(self.low), int(self.high))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + (high - low) * source.random()
        value = math.exp(value) if self.log else value
        kept = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(kept, self.low), self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The values that stand for all."""
        return self.low, self.high


type Dimension = Choice | Range
"""What one field may be."""

type Point = dict[str, Any]
"""A value for every field of a space."""


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """A field and its values as the command line writes them.

    `optim.learning_rate=1e-4,3e-4` or `FIELD=[...]` in JSON chooses; `FIELD=1e-4..1e-2:log` and
    `FIELD=64..512` are ranges.

    Raises:
        ValueError: no field, no values, or values that contradict each other.
    """
    field, equals, values = text.partition("=")
    field = field.strip().removeprefix("--").replace("-", "_")
    if not equals or not field:
        raise ValueError(
            f"space {text!r} must read FIELD=VALUES, as in optim.learning_rate=1e-4,3e-4 or =1e-4..1e-2:log"
        )
    try:
        return field, dimension_of(values.strip())
    except ValueError as error:
        raise ValueError(f"space {field}: {error}") from error


def dimension_of(values: str) -> Dimension:
    """The dimension that `values` spells."""
    found = RANGE.fullmatch(values)
    if found is not None:
        low, high = number(found["low"]), number(found["high"])
        return Range(low, high, log=found["log"] is not None)
    if values.startswith("["):
        held = json.loads(values)
        return Choice(tuple(held))
    return Choice(tuple(scalar(piece.strip()) for piece in values.split(",") if piece.strip()))


def number(text: str) -> float:
    """An end of a range: an integer where it is written as one."""
    value = scalar(text.strip())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{text.strip()!r} is no number, and the ends of a range are")
    return value


def scalar(text: str) -> Any:
    """A JSON value, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def space_of(dimensions: Sequence[tuple[str, Dimension]]) -> dict[str, Dimension]:
    """The dimensions by field.

    Raises:
        ValueError: none, or a field twice.
    """
    if not dimensions:
        raise ValueError("space is empty; name a field at least, as in --space optim.learning_rate=1e-4,3e-4")
    space: dict[str, Dimension] = {}
    for field, dimension in dimensions:
        if field in space:
            raise ValueError(f"space names {field} twice; put all its values into one")
        space[field] = dimension
    return space


def grid(space: Mapping[str, Dimension]) -> list[Point]:
    """Every combination, the last field changing fastest.

    Raises:
        ValueError: a range, which has no list of values.
    """
    for field, dimension in space.items():
        if isinstance(dimension, Range):
            raise ValueError(
                f"space {field} is a range, and method=grid runs every combination of listed values; list "
                "them, or use --method random"
            )
    choices = [dimension.ends for dimension in space.values()]
    return [dict(zip(space, values, strict=True)) for values in product(*choices)]


def random_point(space: Mapping[str, Dimension], seed: int, number: int) -> Point:
    """Trial `number`'s point: it depends on `seed` and `number` alone."""
    source = random.Random(f"{seed}/{number}")
    return {field: dimension.draw(source) for field, dimension in space.items()}


def space_record(space: Mapping[str, Dimension]) -> dict[str, Any]:
    """The space as JSON."""
    return {
        field: {"values": list(each.values)}
        if isinstance(each, Choice)
        else {"low": each.low, "high": each.high, "log": each.log}
        for field, each in space.items()
    }


def space_from(record: Mapping[str, Mapping[str, Any]]) -> dict[str, Dimension]:
    """Undo `space_record`."""
    return {
        field: Choice(tuple(each["values"])) if "values" in each else Range(**each)
        for field, each in record.items()
    }
