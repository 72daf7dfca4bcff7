"""Libraries of the extra `data`, imported where a file needs them."""

from __future__ import annotations

import importlib
from typing import Any


def library(module: str, distribution: str, what: str) -> Any:
    """Import `module` of `distribution`.

    Args:
        module: dotted name.
        distribution: what ships it.
        what: what needs it, in the plural, for the message.

    Raises:
        ImportError: it is not installed; with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f"{what} need {distribution}: pip install 'dew-lm[data]'") from error
