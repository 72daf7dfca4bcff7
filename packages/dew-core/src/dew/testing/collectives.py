"""What devices exchange in a compiled module: the kind and size of every collective."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_CALL = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"[a-z]\w*\[([\d,]*)\]")


@dataclass(frozen=True)
class Collective:
    """One exchange.

    Attributes:
        kind: one of `KINDS`.
        shape: of the result on one device; a combined exchange counts once for each of its arrays.
    """

    kind: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the result has on one device."""
        return math.prod(self.shape)


def collectives(text: str) -> list[Collective]:
    """The collectives in the text of a compiled module, `compiled.as_text()`, in its order."""
    return [
        Collective(kind, tuple(map(int, filter(None, sizes.split(",")))))
        for result, kind in _CALL.findall(text)
        for sizes in _ARRAY.findall(result)
    ]


def kinds(found: list[Collective], *, above: int = 0) -> Counter[str]:
    """How many exchanges there are of each kind, of those with more than `above` elements."""
    return Counter(each.kind for each in found if each.elements > above)
