"""Euler's method on the probability-flow ODE, and its ancestral form (as in k-diffusion, after
arXiv:2206.00364 and arXiv:2006.11239)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.sampling.solvers.base import SamplerSpec, check_eta, renewed, straight

if TYPE_CHECKING:
    import jax

    from dew.diffusion.grid import Grid
    from dew.sampling.solvers.base import Draw, Evaluate, Plan, Row


@dataclass(frozen=True)
class Euler(SamplerSpec):
    """One slope a step.

    The ODE's path between constant estimates is straight, in `sigma / alpha` as in the time of a flow, so
    Euler's step in either is the step of DDIM without fresh noise.
    """

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""
        return straight(grid)

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        clean, noise = evaluate(x, index)
        return row["signal"] * clean + row["noise"] * noise, history


@dataclass(frozen=True)
class EulerAncestral(SamplerSpec):
    """Euler's step to below the next level, and fresh noise back up to it.

    At ratios a and b of this level and the next: `up = min(b, eta b sqrt(1 - (b / a)^2))`, `down = sqrt(b^2 -
    up^2)`.

    Attributes:
        eta: part of fresh noise; 0 is Euler.

    Raises:
        ValueError: a negative eta.
    """

    eta: float = 1.0

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""
        return renewed(grid, self.eta)

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        clean, noise = evaluate(x, index)
        return row["signal"] * clean + row["noise"] * noise + row["fresh"] * draw(), history
