"""Noise schedules: how much signal and noise there is at a time. One module for each family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Exploding": "dew.diffusion.schedules.variance_exploding:dew-diffusion",
        "CosineAngle": "dew.diffusion.schedules.cosine_angle:dew-diffusion",
        "BetaTable": "dew.diffusion.schedules.beta_table:dew-diffusion",
        "StraightLine": "dew.diffusion.schedules.straight_line:dew-diffusion",
        "Schedule": "dew.diffusion.schedules.base:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Schedule as Schedule
    from dew.diffusion.schedules.beta_table import BetaTable as BetaTable
    from dew.diffusion.schedules.cosine_angle import CosineAngle as CosineAngle
    from dew.diffusion.schedules.straight_line import StraightLine as StraightLine
    from dew.diffusion.schedules.variance_exploding import Exploding as Exploding
