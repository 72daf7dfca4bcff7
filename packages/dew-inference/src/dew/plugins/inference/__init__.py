"""What dew-inference adds: the commands that run and publish a trained model."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-inference."""
    yield Component(
        "command",
        "generate",
        "dew.inference.tasks.command:main",
        "Put a trained run to work: continue text, draw images.",
    )
    yield Component(
        "command",
        "export",
        "dew.inference.export.command:main",
        "Write a run's model as a folder that other programs load.",
    )
