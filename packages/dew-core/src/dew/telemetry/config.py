"""What a run writes about its telemetry, as plain records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProfileWindow:
    """One window of steps that the profiler traces.

    Attributes:
        directory: where the trace is written.
        steps: steps to trace.
        warmup: steps this process runs before the trace begins, compilation among them.

    Raises:
        ValueError: no step to trace, or a negative warmup.
    """

    directory: str = "./profile"
    steps: int = 5
    warmup: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"profile.steps={self.steps} must be at least 1; unset profile to trace nothing")
        if self.warmup < 0:
            raise ValueError(f"profile.warmup={self.warmup} must be 0 or more steps")
        if not self.directory:
            raise ValueError("profile.directory='' must name a folder for the trace")
