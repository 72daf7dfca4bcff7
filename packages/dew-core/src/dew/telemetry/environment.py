"""Where a run happens: command, working directory, interpreter, packages, processor and devices."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dew.plugins.known import DISTRIBUTIONS

STACK = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
"""The libraries whose versions decide what a run computes."""


def package_versions() -> dict[str, str]:
    """Distribution -> version, of Dew and the libraries below it; what is missing is left out."""
    found: dict[str, str] = {}
    for name in (*DISTRIBUTIONS, *STACK):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_environment() -> dict[str, object]:
    """The facts a report shows. Devices are there once JAX is in use; asking never starts it."""
    return {
        "command": command(),
        "directory": os.getcwd(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": devices(),
        "packages": package_versions(),
    }


def command() -> str:
    """The command line of this process, its program without the folder."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv and sys.argv[0] else ["python"]
    return shlex.join(words)


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def devices() -> str:
    """What JAX computes on, as in `8 x TPU v4 (tpu), 2 processes`; empty while no backend is open."""
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not bridge.backends_are_initialized():
        return ""
    found = jax.devices()
    text = f"{len(found)} x {found[0].device_kind} ({found[0].platform})"
    return text if jax.process_count() == 1 else f"{text}, {jax.process_count()} processes"
