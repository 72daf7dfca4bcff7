"""Objectives that learn from rewards and from preferences, over a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.objectives.rl.warm_start import WarmStart as WarmStart

__getattr__, __dir__ = lazy(
    __name__,
    {
        "WarmStart": "dew.objectives.rl.warm_start:dew-rl",
    },
)
