"""One submitted request, from the queue to its result."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np

    from dew.sampling.text import Generation

type Stage = Literal["waiting", "running", "done", "failed", "cancelled"]


class Desk(Protocol):
    """What a ticket needs of the server that wrote it."""

    def step(self) -> tuple[Ticket, ...]: ...

    def cancel(self, ticket: Ticket) -> bool: ...


@dataclass(eq=False)
class Ticket:
    """A submitted request.

    Attributes:
        given: `[P]` the prompt as it was given.
        prompt: its real tokens.
        max_new_tokens: its budget.
        key: `[1]`, the key of its row.
        stage: `waiting` in the queue, `running` in a row, then `done`, `failed` or `cancelled`.
    """

    desk: Desk = field(repr=False)
    given: np.ndarray = field(repr=False)
    prompt: np.ndarray = field(repr=False)
    max_new_tokens: int
    key: jax.Array = field(repr=False)
    stage: Stage = "waiting"
    generation: Generation | None = field(default=None, repr=False)
    error: Exception | None = field(default=None, repr=False)

    @property
    def settled(self) -> bool:
        """Whether `result` has something to say without a further step."""
        return self.stage in ("done", "failed", "cancelled")

    def result(self) -> Generation:
        """The request's record, one row over host arrays; the server steps until it is there.

        Raises:
            concurrent.futures.CancelledError: the request was cancelled.
            FloatingPointError: its distribution was undefined at some token.
        """
        while not self.settled:
            self.desk.step()
        if self.error is not None:
            raise self.error
        if self.generation is None:
            raise CancelledError("this request was cancelled; submit it again for a result")
        return self.generation

    def cancel(self) -> bool:
        """Leave the queue, or free the row; False where the request has settled already."""
        return self.desk.cancel(self)
