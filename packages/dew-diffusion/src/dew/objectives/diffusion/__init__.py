"""Denoising diffusion: the objective, its run configuration and its recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.objectives.diffusion.condition import TextCondition as TextCondition
    from dew.objectives.diffusion.config import DEFAULT_MODEL_CONFIG as DEFAULT_MODEL_CONFIG
    from dew.objectives.diffusion.config import DiffusionRunConfig as DiffusionRunConfig
    from dew.objectives.diffusion.config import StableDiffusionAutoencoder as StableDiffusionAutoencoder
    from dew.objectives.diffusion.objective import VALIDATION_SAMPLES as VALIDATION_SAMPLES
    from dew.objectives.diffusion.objective import DiffusionObjective as DiffusionObjective

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DEFAULT_MODEL_CONFIG": "dew.objectives.diffusion.config:dew-diffusion",
        "DiffusionObjective": "dew.objectives.diffusion.objective:dew-diffusion",
        "DiffusionRunConfig": "dew.objectives.diffusion.config:dew-diffusion",
        "StableDiffusionAutoencoder": "dew.objectives.diffusion.config:dew-diffusion",
        "TextCondition": "dew.objectives.diffusion.condition:dew-diffusion",
        "VALIDATION_SAMPLES": "dew.objectives.diffusion.objective:dew-diffusion",
    },
)
