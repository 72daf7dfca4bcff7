"""DDPM's ancestral sampler (Ho et al. 2020, arXiv:2006.11239, algorithm 2), for every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dew.sampling.solvers.base import SamplerSpec, fall, renewed

if TYPE_CHECKING:
    import jax

    from dew.diffusion.grid import Grid
    from dew.sampling.solvers.base import Draw, Evaluate, Plan, Row


@dataclass(frozen=True)
class DDPM(SamplerSpec):
    """Draw from the forward process's posterior given the estimate of x0.

    Attributes:
        variance: fixed_small is the posterior's own; fixed_large that of the forward step, `sigma^2 -
            (alpha / alpha')^2 sigma'^2`. Nothing is drawn on a step to the clean end.

    Raises:
        ValueError: another variance.
    """

    variance: Literal["fixed_small", "fixed_large"] = "fixed_small"

    def __post_init__(self) -> None:
        if self.variance not in ("fixed_small", "fixed_large"):
            raise ValueError(f"sampler.variance={self.variance!r} must be fixed_small or fixed_large")

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""
        import numpy as np

        plan = renewed(grid, 1.0)
        if self.variance == "fixed_large":
            forward = grid.sigma[:-1] * np.sqrt(1 - fall(grid) ** 2)
            plan["fresh"] = np.where(grid.sigma[1:] > 0, forward, 0.0)
        return plan

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        clean, noise = evaluate(x, index)
        return row["signal"] * clean + row["noise"] * noise + row["fresh"] * draw(), history
