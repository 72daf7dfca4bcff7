"""What a solver is: a plan of coefficients made once on the host, and a pure step over an index.

With the estimate of both parts of `x_t = alpha x0 + sigma noise`, every first-order step of every process is

    x' = alpha' x0 + sigma' noise

Importing this module imports neither jax nor numpy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np

    from dew.diffusion.grid import Grid
    from dew.diffusion.process import Estimate

    type Plan = dict[str, np.ndarray]
    """Coefficients by name, float64, one entry for each step."""

    type Evaluate = Callable[[jax.Array, jax.Array | int], Estimate]
    """The estimate for a sample at a point of the grid, by the point's index."""

    type Row = Mapping[str, jax.Array]
    """The plan's coefficients of one step."""


class Solver(Protocol):
    """From point i of a grid to point i + 1."""

    def plan(self, grid: Grid, /) -> Plan:
        """The coefficients of every step through `grid`.

        Raises:
            ValueError: the grid is not one this solver walks.
        """
        ...

    def begin(self, x: jax.Array, /) -> Any:
        """What is remembered before the first step: a pytree of fixed shapes."""
        ...

    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """One step.

        Args:
            x: the samples `[B, ...]` at point `index`.
            index: of the point.
            row: the plan's coefficients of this step.
            history: what the step before left.
            evaluate: the estimate at a point.
            draw: fresh standard normal noise of the shape of x, the same for one index.

        Returns:
            The samples at the next point, and what is remembered.
        """
        ...


type Draw = Callable[[], jax.Array]
"""Fresh noise for the current step, each row by its own key."""


@dataclass(frozen=True)
class SamplerSpec(ABC):
    """A solver that a run's record stores by its registered name."""

    component_kind: ClassVar[str] = "sampler"

    @abstractmethod
    def plan(self, grid: Grid, /) -> Plan:
        """See `Solver`."""

    def begin(self, x: jax.Array, /) -> Any:
        """Nothing is remembered unless a solver says so."""
        return ()

    @abstractmethod
    def step(
        self, x: jax.Array, index: jax.Array, row: Row, history: Any, evaluate: Evaluate, draw: Draw, /
    ) -> tuple[jax.Array, Any]:
        """See `Solver`."""


def straight(grid: Grid) -> Plan:
    """The coefficients of the first-order step without fresh noise."""
    return {"signal": grid.alpha[1:], "noise": grid.sigma[1:]}


def renewed(grid: Grid, eta: float) -> Plan:
    """The first-order step that draws part of its noise anew.

    `fresh = sigma' min(1, eta sqrt(1 - (s' / s)^2))` at ratios s, and `noise^2 = sigma'^2 - fresh^2`, so the
    noise has the grid's level whatever eta is. At eta 1 the fresh part has the variance of the forward
    process's posterior given x0.
    """
    import numpy as np

    new = np.minimum(1.0, eta * np.sqrt(1 - fall(grid) ** 2))
    return {
        "signal": grid.alpha[1:],
        "noise": grid.sigma[1:] * np.sqrt(1 - new**2),
        "fresh": grid.sigma[1:] * new,
    }


def fall(grid: Grid) -> np.ndarray:
    """The factor `s' / s` by which the noise-to-signal ratio falls in each step, in [0, 1)."""
    return grid.sigma[1:] * grid.alpha[:-1] / (grid.alpha[1:] * grid.sigma[:-1])


def check_eta(eta: float) -> None:
    """Refuse a part of fresh noise outside of its range.

    Raises:
        ValueError: negative or not finite.
    """
    if not 0 <= eta < math.inf:
        raise ValueError(f"sampler.eta={eta} must be finite and not negative; 0 draws no fresh noise")
