"""Names of runs."""

from __future__ import annotations

import os
import re
import time

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@-]*(/[A-Za-z0-9][A-Za-z0-9_.+=@-]*)*")


def fresh_name(checkpoint_dir: str, recipe: str) -> str:
    """`recipe-YYYYMMDD-HHMMSS` in local time, with a number behind it where `checkpoint_dir` has that one.

    A bucket is not listed: there the process id makes the name unique.
    """
    name = f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    if "://" in checkpoint_dir:
        return f"{name}-{os.getpid()}"
    unique, number = name, 2
    while os.path.exists(os.path.join(checkpoint_dir, unique)):
        unique, number = f"{name}-{number}", number + 1
    return unique


def run_directory(checkpoint_dir: str, name: str) -> str:
    """The folder of the run called `name`.

    Raises:
        ValueError: a name that is empty, absolute or climbs out of the folder.
    """
    if not SAFE.fullmatch(name):
        raise ValueError(
            f"trainer.name={name!r} must be a folder name: letters, digits and _ . - + = @, "
            "parts joined by /, each starting with a letter or digit"
        )
    separator = "" if checkpoint_dir.endswith("/") else "/"
    return (
        f"{checkpoint_dir}{separator}{name}"
        if "://" in checkpoint_dir
        else os.path.join(checkpoint_dir, name)
    )
