"""Pairs of responses of which one is preferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Pair": "dew.data.preferences.sums:dew-rl",
        "SumPairs": "dew.data.preferences.config:dew-rl",
        "pair_dataset": "dew.data.preferences.records:dew-rl",
        "pair_records": "dew.data.preferences.records:dew-rl",
    },
)

if TYPE_CHECKING:
    from dew.data.preferences.config import SumPairs as SumPairs
    from dew.data.preferences.records import pair_dataset as pair_dataset
    from dew.data.preferences.records import pair_records as pair_records
    from dew.data.preferences.sums import Pair as Pair
