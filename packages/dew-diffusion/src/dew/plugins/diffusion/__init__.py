"""What dew-diffusion adds."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-diffusion."""
    yield from ()
