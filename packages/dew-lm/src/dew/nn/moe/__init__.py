"""Mixtures of experts: a router sends every token to a few of many feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.moe.config import ClampedGate as ClampedGate
    from dew.nn.moe.config import ExpertGroups as ExpertGroups
    from dew.nn.moe.config import Mixture as Mixture
    from dew.nn.moe.config import SharedExpert as SharedExpert
    from dew.nn.moe.layer import MixtureOfExperts as MixtureOfExperts
    from dew.nn.moe.routes import RouterRows as RouterRows
    from dew.nn.moe.routes import Routes as Routes

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ClampedGate": "dew.nn.moe.config:dew-lm",
        "ExpertGroups": "dew.nn.moe.config:dew-lm",
        "Mixture": "dew.nn.moe.config:dew-lm",
        "MixtureOfExperts": "dew.nn.moe.layer:dew-lm",
        "RouterRows": "dew.nn.moe.routes:dew-lm",
        "Routes": "dew.nn.moe.routes:dew-lm",
        "SharedExpert": "dew.nn.moe.config:dew-lm",
    },
)
