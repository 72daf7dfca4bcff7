"""Settings for every test run: one CPU backend, a persistent compile cache, no network."""

import gc
import os
import sys
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dew-tests"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")

MAPS = Path("/proc/self/maps")
MANY_MAPS = 20_000
"""Linux allows a process 65,530 mappings, and a compiled program takes some for as long as it is cached."""


@pytest.fixture(scope="module", autouse=True)
def few_mappings():
    """Let compiled programs go between files: a worker that meets the kernel's limit dies without a word."""
    yield
    if "jax" not in sys.modules or not MAPS.exists():
        return
    if len(MAPS.read_bytes().splitlines()) > MANY_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()
