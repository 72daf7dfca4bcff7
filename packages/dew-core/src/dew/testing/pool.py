"""A function of a file, run in a pool of real JAX processes on this machine: gloo collectives on 127.0.0.1.

    outcomes = run_pool("jobs.py:train", processes=2, devices=4, arguments={"steps": 3})

No pool outlives its time: what still runs then is killed by its process id and told by `Outcome.late`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one process of a pool ended.

    Attributes:
        status: its exit status; negative for the signal that ended it.
        value: what the function returned, read back from JSON; None where it did not return.
        output: standard output and standard error together.
        ended: when, on the machine's monotonic clock, which all its processes share.
        late: whether it was still running when the pool's time was over, and was killed.
    """

    status: int
    value: Any
    output: str
    ended: float
    late: bool


def run_pool(
    function: str,
    *,
    processes: int,
    devices: int,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> list[Outcome]:
    """Call `function` in every process of a new pool, and tell how each of them ended.

    Args:
        function: `"path/to/file.py:name"`; called with `arguments`, returns what JSON can hold.
        processes: how many; 1 joins no pool.
        devices: virtual CPU devices of the whole pool.
        arguments: keywords, the same for every process; what JSON can hold.
        environment: variables on top of this process's own.
        timeout_s: seconds until what still runs is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = _Children(Path(folder), processes)
        words = [function, json.dumps(dict(arguments)), f"127.0.0.1:{free_port()}", str(processes)]
        settings = _settings(devices // processes, environment or {})
        try:
            for _ in range(processes):
                children.start(words, settings)
            children.wait(time.monotonic() + timeout_s)
        finally:
            children.kill()
        return [children.outcome(index) for index in range(processes)]


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Children:
    """The processes of a pool with the files they write."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._ended = [0.0] * count
        self._late = [False] * count

    def start(self, words: list[str], settings: dict[str, str]) -> None:
        index = len(self._running)
        command = [
            sys.executable,
            "-u",
            "-m",
            "dew.testing.pool",
            *words,
            str(index),
            str(self._value(index)),
        ]
        with self._output(index).open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=settings)
        self._running.append(process)

    def wait(self, deadline: float) -> None:
        """Until all have ended, or the deadline."""
        going = set(range(len(self._running)))
        while going and time.monotonic() < deadline:
            for index in sorted(going):
                if self._running[index].poll() is not None:
                    self._ended[index] = time.monotonic()
                    going.discard(index)
            time.sleep(0.05)

    def kill(self) -> None:
        for index, process in enumerate(self._running):
            if process.poll() is None:
                self._late[index] = True
                self._ended[index] = time.monotonic()
                process.kill()
            process.wait()

    def outcome(self, index: int) -> Outcome:
        held = self._value(index)
        return Outcome(
            status=self._running[index].returncode,
            value=json.loads(held.read_text()) if held.exists() else None,
            output=self._output(index).read_text(errors="replace"),
            ended=self._ended[index],
            late=self._late[index],
        )

    def _value(self, index: int) -> Path:
        return self._folder / f"value-{index}.json"

    def _output(self, index: int) -> Path:
        return self._folder / f"output-{index}.txt"


def _settings(devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return {**os.environ, **own, **environment}


def _child(function: str, arguments: str, address: str, count: str, index: str, result: str) -> None:
    import jax

    file, _, name = function.rpartition(":")
    spec = importlib.util.spec_from_file_location("dew_pool_job", file)
    assert spec is not None and spec.loader is not None, f"{file} cannot be imported"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if int(count) > 1:
        jax.distributed.initialize(
            address,
            int(count),
            int(index),
            initialization_timeout=60,
            heartbeat_timeout_seconds=60,
            shutdown_timeout_seconds=20,
        )
    value = getattr(module, name)(**json.loads(arguments))
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    _child(*sys.argv[1:])
