"""Continuous batching: requests of any length share one compiled step over one resident cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Admission": "dew.inference.server.admitting:dew-inference",
        "Server": "dew.inference.server.continuous:dew-inference",
        "Ticket": "dew.inference.server.ticket:dew-inference",
    },
)

if TYPE_CHECKING:
    from dew.inference.server.admitting import Admission as Admission
    from dew.inference.server.continuous import Server as Server
    from dew.inference.server.ticket import Ticket as Ticket
