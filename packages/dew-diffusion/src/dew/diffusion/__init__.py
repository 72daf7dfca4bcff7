"""The forward process: schedules, targets, weights, time laws, and what a model becomes under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Denoiser": "dew.diffusion.denoiser:dew-diffusion",
        "Estimate": "dew.diffusion.process:dew-diffusion",
        "Grid": "dew.diffusion.grid:dew-diffusion",
        "Level": "dew.diffusion.process:dew-diffusion",
        "Process": "dew.diffusion.process:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.diffusion.denoiser import Denoiser as Denoiser
    from dew.diffusion.grid import Grid as Grid
    from dew.diffusion.process import Estimate as Estimate
    from dew.diffusion.process import Level as Level
    from dew.diffusion.process import Process as Process
