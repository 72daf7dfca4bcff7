"""Orbax's log: a failed write is raised on the training thread, so that its traceback is no news there."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


class Raised(logging.Filter):
    """Drops the tracebacks that Orbax's writing threads log before they hand the error on."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is shown."""
        return not (record.exc_info and "/orbax/checkpoint/" in record.pathname.replace("\\", "/"))


def hear_of_failures_once() -> None:
    """Leave a failed write to the error that `StepStore` raises for it."""
    logger = logging.getLogger("absl")
    if not any(isinstance(each, Raised) for each in logger.filters):
        logger.addFilter(Raised())


@contextmanager
def without_warnings() -> Generator[None]:
    """Orbax warns that a directory opened for reading is read only, which is what was asked for."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
