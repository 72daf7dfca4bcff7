"""Which of the waiting requests enter the free rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dew.inference.server.ticket import Ticket


class Admission(Protocol):
    """Chooses among the waiting requests. What a request draws does not depend on the choice, only when."""

    def __call__(self, waiting: Sequence[Ticket], free: int, /) -> Sequence[Ticket]:
        """At most `free` of `waiting`, in the order in which they enter.

        Args:
            waiting: the queue, oldest first.
            free: how many rows are free, at least 1.
        """
        ...


def oldest_first(waiting: Sequence[Ticket], free: int, /) -> Sequence[Ticket]:
    """The requests in the order of their arrival, as many as rows are free."""
    return waiting[:free]


def admitted(policy: Admission, waiting: Sequence[Ticket], free: int, *, idle: bool) -> list[Ticket]:
    """What `policy` chooses, checked.

    Args:
        policy: of the server.
        waiting: the queue.
        free: how many rows are free.
        idle: whether no row runs, so that choosing nothing would wait for ever.

    Raises:
        ValueError: more than fit, one twice, one that does not wait, or nothing although all rows are free.
    """
    chosen = list(policy(tuple(waiting), free))
    if len(chosen) > free:
        raise ValueError(f"admission chose {len(chosen)} requests for {free} free rows; choose at most those")
    if len({id(each) for each in chosen}) < len(chosen):
        raise ValueError("admission chose a request twice; choose each once")
    if any(each not in waiting for each in chosen):
        raise ValueError("admission chose a request that is not waiting; choose among those it is given")
    if idle and not chosen:
        raise ValueError(
            f"admission chose none of {len(waiting)} waiting requests while every row is free, which would "
            "never end; choose at least one then"
        )
    return chosen
