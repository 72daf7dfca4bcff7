"""DPM-Solver++ of second order with one evaluation a step (Lu et al. 2022, arXiv:2211.01095, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.sampling.solvers.base import SamplerSpec, fall, straight

if TYPE_CHECKING:
    import jax

    from dew.diffusion.grid import Grid
    from dew.sampling.solvers.base import Draw, Evaluate, Plan, Row


@dataclass(frozen=True)
class DPMSolverPP(SamplerSpec):
    """The first-order step with x0 extrapolated from the last two estimates.

    With `h = ln(s / s')` at ratios s, `x' = (sigma' / sigma) x + alpha' (1 - exp(-h)) D`, `D = x0 + h / (2
    h_before) (x0 - x0_before)`. The first step, and one to the clean end, take `D = x0`.
    """

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""
        import numpy as np

        falls = fall(grid)
        with np.errstate(divide="ignore"):
            h = -np.log(falls)
        ahead = np.zeros_like(h)
        # A step from a level without signal is infinitely long, and the next one extrapolates nothing.
        inner = grid.sigma[2:] > 0
        ahead[1:] = np.where(inner, h[1:], 0.0) / (2 * h[:-1])
        return {**straight(grid), "extrapolated": grid.alpha[1:] * (1 - falls) * ahead}

    def begin(self, x: jax.Array, /) -> Any:
        """The last estimate of x0; the first step does not read it."""
        import jax.numpy as jnp

        return jnp.zeros_like(x)

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        clean, noise = evaluate(x, index)
        moved = row["signal"] * clean + row["noise"] * noise
        return moved + row["extrapolated"] * (clean - history), clean
