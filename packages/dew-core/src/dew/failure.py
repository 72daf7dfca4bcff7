"""Failures that say all there is to say about themselves."""

from __future__ import annotations


class StatedFailure(Exception):
    """A known condition of a run, its data or its weights that ends the work, and no bug.

    The command line prints its message alone and ends with status 1, where an error that nobody foresaw keeps
    its traceback. A package gives a condition of its own a subclass, which may be another kind of error too:

        class Diverged(StatedFailure, FloatingPointError):
            \"\"\"The weights are not finite.\"\"\"

    The message names the field or place, the value, the rule and the fix.
    """


class NothingCounted(StatedFailure, ValueError):
    """Data in which no target counts, so that there is nothing to learn from or to average."""


class DataEnded(StatedFailure, RuntimeError):
    """Training data that ended before the run did."""
