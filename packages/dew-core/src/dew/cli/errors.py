"""What the command line says when something goes wrong, and the exit status it ends with.

0 is success, 1 a failure, 2 a user's mistake, 130 a run stopped by Ctrl-C and 143 one stopped by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

from dew.failure import StatedFailure

SUCCESS = 0
FAILURE = 1
MISTAKE = 2
INTERRUPTED = 128 + int(signal.SIGINT)
TERMINATED = 128 + int(signal.SIGTERM)

TRACEBACK = "DEW_TRACEBACK"
STEPPING = ("dew.training.fit", "_Loop.run")
"""Module and function whose frame means that training had begun when an error arose."""


class UserError(ValueError):
    """A mistake in what the user asked for; the message names the field, the value, the rule and the fix."""


def is_mistake(error: BaseException) -> bool:
    """Whether `error` is a user's mistake: one raised on purpose, before any training step ran."""
    if isinstance(error, UserError):
        return True
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, (ValueError, OSError)) and not has_trained(error)


def has_trained(error: BaseException) -> bool:
    """Whether `error` came out of the training loop."""
    frames = traceback.walk_tb(error.__traceback__)
    return any((frame.f_globals.get("__name__"), frame.f_code.co_qualname) == STEPPING for frame, _ in frames)


def report(error: Exception) -> int:
    """Print `error` to standard error and return the exit status.

    A mistake and a failure that states all there is to say are one message. Anything else comes with its
    traceback, and so do they under `DEW_TRACEBACK=1`.
    """
    stopped = stopped_by(error)
    if stopped is not None:
        print(f"dew: {error}", file=sys.stderr)
        return 128 + stopped
    mistake = is_mistake(error)
    stated = mistake or isinstance(error, StatedFailure)
    if stated and os.environ.get(TRACEBACK, "") in ("", "0"):
        print(f"dew: {message(error)}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return MISTAKE if mistake else FAILURE


def message(error: Exception) -> str:
    """The text of `error`; an operating system's error reads as its reason and the file."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def stopped_by(error: Exception) -> int | None:
    """The signal behind a run that saved and stopped, or None for any other error."""
    module = sys.modules.get("dew.training.preemption")
    if module is None or not isinstance(error, module.Preempted):
        return None
    return int(vars(error)["signal"])
