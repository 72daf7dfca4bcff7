"""Whether a run's steps count targets: one that counts none computes, saves and learns nothing."""

from __future__ import annotations

import warnings

import jax

from dew.failure import NothingCounted
from dew.training.state import TrainState


class CountedTargets:
    """Tells of the first step without a loss, and refuses a run whose every window was without one.

    Args:
        state: what the run starts from.
        accumulation: accepted microbatches to one update.
    """

    def __init__(self, state: TrainState, *, accumulation: int) -> None:
        self._size = accumulation
        self._first = int(state.step)
        self._before = self._clocks(state)
        self._told = False

    def tell(self, step: int) -> None:
        """Warn, once, that the window of `step` counts no target so far."""
        if self._told:
            return
        self._told = True
        warnings.warn(
            f"step {step} counted no target, so it has no loss and moves nothing; see which targets the "
            "objective counts (a role, a mask, padding) and whether the data holds them",
            stacklevel=4,
        )

    def check(self, state: TrainState) -> None:
        """Refuse to call a run trained that changed nothing.

        Raises:
            NothingCounted: windows were filled since the start, and none of them counted a target.
        """
        windows, updates = self._clocks(state)
        if windows > self._before[0] and updates == self._before[1]:
            raise NothingCounted(
                f"none of the steps {self._first + 1} to {int(state.step)} counted a target, so nothing was "
                "trained; see which targets the objective counts (a role, a mask, padding) and whether the "
                "data holds them"
            )

    def _clocks(self, state: TrainState) -> tuple[int, int]:
        microstep, updates = jax.device_get((state.microstep, state.updates))
        return int(microstep) // self._size, int(updates)
