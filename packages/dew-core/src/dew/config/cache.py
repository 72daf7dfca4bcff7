"""Where Dew keeps what it can make again: compiled programs and tokenized text."""

from __future__ import annotations

import os
from pathlib import Path


def dew_cache_dir() -> Path:
    """Dew's cache folder: `$DEW_CACHE`, else `dew` in `$XDG_CACHE_HOME`, else `~/.cache/dew`. Not created
    here."""
    named = os.environ.get("DEW_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dew"


def default_compilation_cache_dir() -> str:
    """`$JAX_COMPILATION_CACHE_DIR`, else the folder of compiled programs in Dew's cache."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(dew_cache_dir() / "xla")
