"""A process that computes a benchmark's other side, and answers one line to every line it is sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class Worker:
    """A script beside this one, under an interpreter that has what it compares with.

    Args:
        python: the interpreter.
        script: file name of the script.
        arguments: what it is started with.
    """

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the other side ended with status {self._process.wait()}")
        return line.strip()

    def ask(self, request: str) -> str:
        """What it answers to `request`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self.line()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
