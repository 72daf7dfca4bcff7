"""Solvers: from one noise level of a grid to the next. Each class is its own configuration record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DDIM": "dew.sampling.solvers.implicit:dew-diffusion",
        "DDPM": "dew.sampling.solvers.posterior:dew-diffusion",
        "DPMSolverPP": "dew.sampling.solvers.multistep:dew-diffusion",
        "Euler": "dew.sampling.solvers.first_order:dew-diffusion",
        "EulerAncestral": "dew.sampling.solvers.first_order:dew-diffusion",
        "Heun": "dew.sampling.solvers.trapezoid:dew-diffusion",
        "SamplerSpec": "dew.sampling.solvers.base:dew-diffusion",
        "Solver": "dew.sampling.solvers.base:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.sampling.solvers.base import SamplerSpec as SamplerSpec
    from dew.sampling.solvers.base import Solver as Solver
    from dew.sampling.solvers.first_order import Euler as Euler
    from dew.sampling.solvers.first_order import EulerAncestral as EulerAncestral
    from dew.sampling.solvers.implicit import DDIM as DDIM
    from dew.sampling.solvers.multistep import DPMSolverPP as DPMSolverPP
    from dew.sampling.solvers.posterior import DDPM as DDPM
    from dew.sampling.solvers.trapezoid import Heun as Heun
