"""Heun's method (Karras et al. 2022, arXiv:2206.00364, algorithm 1), for every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.sampling.solvers.base import SamplerSpec, straight

if TYPE_CHECKING:
    import jax

    from dew.diffusion.grid import Grid
    from dew.sampling.solvers.base import Draw, Evaluate, Plan, Row


@dataclass(frozen=True)
class Heun(SamplerSpec):
    """Euler's step, corrected by the mean of the slopes at both ends: two evaluations a step.

    With `y = x / scale` the slope is `dy / d(sigma / scale)`: the noise where scale is alpha, `noise - x0`
    where it is `alpha + sigma`.

    Attributes:
        into_zero: correct a step to a point without noise as well, where a model of the velocity still has a
            slope; such a point must be given in times. By itself that step is Euler's.
    """

    into_zero: bool = False

    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`.

        Raises:
            ValueError: `into_zero` on a grid whose last point a model cannot be told.
        """
        import numpy as np

        if self.into_zero and not np.isfinite(grid.noise_level[-1]):
            raise ValueError(
                "sampler.into_zero=True needs a last point whose noise level a model can be told; give times "
                "that end at one, or leave into_zero off"
            )
        along = grid.sigma / grid.scale
        corrects = np.ones(len(grid) - 1) if self.into_zero else (grid.sigma[1:] > 0).astype(float)
        return {
            **straight(grid),
            "half": grid.scale[1:] * np.diff(along) / 2,
            "flow": np.full(len(grid) - 1, float(grid.flow)),
            "corrects": corrects,
        }

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""
        from jax import lax

        clean, noise = evaluate(x, index)
        moved = row["signal"] * clean + row["noise"] * noise

        def corrected(moved: jax.Array) -> jax.Array:
            ahead = evaluate(moved, index + 1)
            turn = (ahead.noise - noise) - row["flow"] * (ahead.clean - clean)
            return moved + row["half"] * turn

        return lax.cond(row["corrects"] > 0, corrected, lambda moved: moved, moved), history
