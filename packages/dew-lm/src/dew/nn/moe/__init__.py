"""Mixtures of experts: a router sends every token to a few of many feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.moe.config import Mixture as Mixture
    from dew.nn.moe.layer import MixtureOfExperts as MixtureOfExperts

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Mixture": "dew.nn.moe.config:dew-lm",
        "MixtureOfExperts": "dew.nn.moe.layer:dew-lm",
    },
)
