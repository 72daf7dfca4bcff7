"""`sample`: from noise to samples along a grid, one compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dew.diffusion.grid import Grid, at_times
from dew.diffusion.grid import grid as spaced
from dew.sampling.images.draws import row_keys, row_noise
from dew.sampling.images.guidance import evaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from dew.diffusion.denoiser import Denoises
    from dew.diffusion.process import Process
    from dew.sampling.images.config import CFG
    from dew.sampling.solvers.base import Solver


def sample(
    denoise: Denoises,
    x_T: jax.Array,
    steps: int | None = None,
    *,
    solver: Solver,
    guidance: CFG | None = None,
    key: jax.Array,
    times: Grid | Sequence[float] | np.ndarray | None = None,
    final_denoise: bool = True,
) -> jax.Array:
    """Walk from noise to samples; pure, to be called under jit or without.

    Args:
        denoise: the denoiser, as `Process.denoiser` makes it.
        x_T: `[B, ...]` at the noise level of the grid's first point: `grid.sigma[0]` times unit noise.
        steps: evaluations along the process's own grid; Heun evaluates twice a step.
        solver: from one point to the next.
        guidance: of the estimates; None takes the conditional ones.
        key: typed key of the fresh noise, or one for each row. A row's noise follows from its key alone.
        times: the grid, or the process times of one, in place of `steps`.
        final_denoise: end at the estimate of x0 of the last point. False ends at that point itself.

    Returns:
        The samples `[B, ...]` in float32 or wider.

    Raises:
        ValueError: not exactly one of `steps` and `times`, or a grid that the solver does not walk.

    Example:
        >>> grid = process.grid(20)
        >>> x_T = grid.sigma[0] * jax.random.normal(key, (4, 8, 8, 1))
        >>> sample(process.denoiser(model), x_T, 20, solver=Heun(), key=key)
    """
    grid = resolved(denoise.process, steps, times)
    walk = grid.closed() if final_denoise else grid
    x = x_T.astype(jnp.promote_types(x_T.dtype, jnp.float32))
    evaluate = evaluator(denoise, walk, guidance, x.dtype)
    keys = row_keys(key, x.shape[0])
    plan = {name: jnp.asarray(values, x.dtype) for name, values in solver.plan(walk).items()}

    def body(carry: tuple[jax.Array, Any], at: tuple[jax.Array, Any]) -> tuple[tuple[jax.Array, Any], None]:
        (x, history), (index, row) = carry, at

        def draw() -> jax.Array:
            return row_noise(keys, x.shape[1:], index, dtype=x.dtype)

        return solver.step(x, index, row, history, evaluate, draw), None

    (x, _), _ = jax.lax.scan(body, (x, solver.begin(x)), (jnp.arange(len(walk) - 1), plan))
    return x


def resolved(process: Process, steps: int | None, times: Grid | Sequence[float] | np.ndarray | None) -> Grid:
    """The grid that `steps` or `times` stand for.

    Raises:
        ValueError: both are given, or neither.
    """
    if (steps is None) == (times is None):
        raise ValueError(f"steps={steps} and times={times} must not both be given or both be left out")
    if steps is not None:
        return spaced(process, steps)
    return times if isinstance(times, Grid) else at_times(process, times if times is not None else ())
