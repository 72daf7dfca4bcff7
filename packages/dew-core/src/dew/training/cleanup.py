"""Cleanup that never hides the error which caused it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Cleanup:
    """Runs its actions, last added first, when the block ends; every one of them runs.

    A failing action is noted on the error that is already under way, or raised if there is none.
    """

    def __init__(self) -> None:
        self._actions: list[tuple[str, Callable[[], None]]] = []

    def add(self, what: str, action: Callable[[], None]) -> None:
        """Run `action` at the end; `what` completes "... failed too"."""
        self._actions.append((what, action))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        primary = error
        for what, action in reversed(self._actions):
            try:
                action()
            except Exception as failure:
                if primary is None:
                    primary = failure
                else:
                    primary.add_note(f"{what} failed too: {failure!r}")
        if error is None and primary is not None:
            raise primary
