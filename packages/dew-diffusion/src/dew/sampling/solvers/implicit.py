"""DDIM (Song et al. 2021, arXiv:2010.02502, equation 12), for every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.sampling.solvers.base import SamplerSpec, check_eta, renewed, straight

if TYPE_CHECKING:
    import jax

    from dew.diffusion.grid import Grid
    from dew.sampling.solvers.base import Draw, Evaluate, Plan, Row


@dataclass(frozen=True)
class DDIM(SamplerSpec):
    """Keep the estimates of sample and noise, and combine them anew at the next level.

    `x' = alpha' x0 + sqrt(sigma'^2 - f^2) noise + f z`, f the fresh part.

    Attributes:
        eta: part of fresh noise; 0 draws none, 1 draws what DDPM draws.

    Raises:
        ValueError: a negative eta, or one above 1.
    """

    eta: float = 0.0

    def __post_init__(self) -> None:
        check_eta(self.eta)
        if self.eta > 1:
            raise ValueError(f"sampler.eta={self.eta} must be at most 1, which draws as DDPM does")

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""
        return renewed(grid, self.eta) if self.eta else straight(grid)

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        clean, noise = evaluate(x, index)
        moved = row["signal"] * clean + row["noise"] * noise
        return (moved + row["fresh"] * draw() if self.eta else moved), history
