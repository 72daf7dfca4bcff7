"""When a run's state goes to its checkpoints, and what the tracker hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dew.data.dataset import DataPartition
from dew.objectives.base import Metric
from dew.telemetry.tracker import Tracker
from dew.training.checkpoints import Checkpoints
from dew.training.state import TrainState


def without_empty_window(state: TrainState) -> TrainState:
    """The state, at a window's boundary without the accumulation, which then holds nothing."""
    if state.accumulation is None or int(state.microstep) % int(state.window_size):
        return state
    return replace(state, accumulation=None)


class Saver:
    """Saves each step once, with the validation metrics of that step, and announces what became durable."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        tracker: Tracker,
        share: DataPartition,
        metrics: tuple[Metric[Any], ...],
    ) -> None:
        self._checkpoints = checkpoints
        self._tracker = tracker
        self._share = share
        self._higher = bool(metrics) and metrics[0].higher_is_better
        self._scored: tuple[int, Mapping[str, float]] = (-1, {})
        self._pending: int | None = None
        self._saved: int | None = None

    @property
    def keeps(self) -> bool:
        """Whether the run has checkpoints."""
        return self._checkpoints is not None

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Remember the metrics of a validation pass at `step`."""
        self._scored = (step, values)

    def save(self, step: int, state: TrainState, position: bytes | None) -> None:
        """Schedule the checkpoint of `step`, once.

        Raises:
            CheckpointError: this or an earlier write failed.
        """
        if self._checkpoints is None or step == self._saved:
            return
        self.wait()
        scored_at, values = self._scored
        self._checkpoints.save(
            step,
            without_empty_window(state),
            position,
            values if scored_at == step else None,
            share=None if position is None else self._share,
            higher_is_better=self._higher,
        )
        self._pending = self._saved = step

    @property
    def copies_every(self) -> int | None:
        """Steps between emergency copies, or None."""
        return None if self._checkpoints is None else self._checkpoints.local_every

    def copy(self, step: int, state: TrainState, position: bytes | None) -> None:
        """Schedule the emergency copy of `step`.

        Raises:
            CheckpointError: this or an earlier copy failed.
        """
        assert self._checkpoints is not None
        share = None if position is None else self._share
        self._checkpoints.save_copy(step, without_empty_window(state), position, share=share)

    def announce(self) -> None:
        """Announce the pending write where it is done, without waiting for it.

        Raises:
            CheckpointError: it failed.
        """
        if self._pending is not None and self._checkpoints is not None and not self._checkpoints.writing:
            self.wait()

    def wait(self) -> None:
        """Wait for the pending writes and announce the checkpoint.

        Raises:
            CheckpointError: it failed.
        """
        if self._checkpoints is None:
            return
        step, self._pending = self._pending, None
        self._checkpoints.wait()
        if step is not None:
            self._tracker.checkpointed(self._checkpoints.path(step), step=step)
