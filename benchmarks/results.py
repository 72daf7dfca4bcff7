"""One JSON line per result: what was measured, with which versions, on what, and how much it varied."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

PACKAGES = ("jax", "jaxlib", "flax", "optax")


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, best and interquartile range, in milliseconds."""
    low, median, high = statistics.quantiles(seconds, n=4)
    return {
        "median_ms": round(1e3 * median, 2),
        "best_ms": round(1e3 * min(seconds), 2),
        "iqr_ms": round(1e3 * (high - low), 2),
        "samples": len(seconds),
    }


def report(benchmark: str, **values: object) -> None:
    """Print a result as one line of JSON."""
    line = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        **values,
    }
    print(json.dumps(line), flush=True)
