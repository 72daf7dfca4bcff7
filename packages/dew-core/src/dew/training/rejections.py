"""Rejected attempts in a row: a run that rejects every batch is stopped with advice instead of spinning."""

from __future__ import annotations

from collections import deque

import jax

from dew.failure import StatedFailure

LIMIT = 20
"""Consecutive rejections after which a run stops."""

LAG = 2
"""Steps whose outcome is left on the device, so that reading it never holds back the next dispatch."""


class RejectedSteps(StatedFailure, RuntimeError):
    """Every one of the last attempts had a gradient or a loss that is not finite."""


class Rejections:
    """Counts rejections in a row, a few steps behind the dispatch."""

    def __init__(self, *, dynamic_scale: bool) -> None:
        self._scaled = dynamic_scale
        self._ahead: deque[tuple[int, jax.Array]] = deque()
        self._row = 0

    def watch(self, step: int, accepted: jax.Array) -> None:
        """Take note of attempt `step`.

        Raises:
            RejectedSteps: the limit is reached.
        """
        self._ahead.append((step, accepted))
        while len(self._ahead) > LAG:
            self._read(*self._ahead.popleft())

    def drain(self) -> None:
        """Read every outcome that is still ahead."""
        while self._ahead:
            self._read(*self._ahead.popleft())

    def _read(self, step: int, accepted: jax.Array) -> None:
        self._row = 0 if bool(accepted) else self._row + 1
        if self._row < LIMIT:
            return
        remedy = (
            "the loss scale is already at its lowest; "
            if self._scaled
            else "with float16 compute set dynamic_scale=True; "
        )
        raise RejectedSteps(
            f"the last {LIMIT} attempts, up to step {step}, had a loss or gradient that is not finite, and "
            "none of them "
            f"changed the parameters. {remedy}otherwise lower the learning rate, clip gradients, or look for "
            "bad rows in the data (the batches of these steps)"
        )
