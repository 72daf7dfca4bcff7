"""What can go wrong with a checkpoint besides its absence."""

from __future__ import annotations

from dew.failure import StatedFailure


class CheckpointError(StatedFailure, RuntimeError):
    """A checkpoint could not be written; training must not go on as if it had been."""


class DamagedCheckpoint(StatedFailure, ValueError):
    """A complete checkpoint whose files cannot be read."""
