"""A Python process of its own that has several virtual CPU devices: how many is settled when JAX starts.

result = on_devices("jobs.py", "argument")
result = on_devices("-c", PROGRAM, devices=4)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

DEVICES = 8


def on_devices(*words: str, devices: int = DEVICES, timeout_s: float = 900.0) -> str:
    """Run Python with `words` in a process that sees `devices` CPU devices; return what it prints.

    Args:
        words: a script and its arguments, or `-c` or `-m` and what follows.
        devices: virtual devices of the CPU.
        timeout_s: seconds until it is killed.

    Raises:
        AssertionError: it failed; with the end of what it said.
        subprocess.TimeoutExpired: it ran too long.
    """
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, f"the process with {devices} devices failed: {said}"
    return done.stdout


def result_on_devices(*words: str, devices: int = DEVICES, timeout_s: float = 900.0) -> Any:
    """What the last line that `on_devices` returns says as JSON."""
    printed = on_devices(*words, devices=devices, timeout_s=timeout_s)
    return json.loads(printed.splitlines()[-1])
