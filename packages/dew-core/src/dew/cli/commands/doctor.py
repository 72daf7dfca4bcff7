"""`dew doctor`: what is installed, what it runs on, and what is wrong with it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dew.cli.errors import FAILURE, SUCCESS
from dew.cli.pages import table
from dew.config.cache import default_compilation_cache_dir, dew_cache_dir
from dew.plugins.loader import installed
from dew.telemetry.amounts import size
from dew.telemetry.environment import STACK, package_versions, processor
from dew.telemetry.journal import folder_bytes

TIME_LIMIT_S = 60
LEAST_FREE = 1_000_000_000
"""Free bytes below which a run cannot count on saving."""
PROBE = (
    "import jax; found = jax.devices(); "
    "print(len(found), 'x', found[0].device_kind, f'({found[0].platform})')"
)


@dataclass(frozen=True)
class Finding:
    """A line of the report; `problem` says what is broken and what to do, empty where nothing is."""

    name: str
    text: str
    problem: str = ""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status: 1 when something is broken."""
    folder = Path(parser().parse_args(argv).folder)
    findings = [*system(), *packages(), devices(), *plugins(), disk(folder), *caches()]
    print(table((each.name, each.text) for each in findings))
    problems = [each for each in findings if each.problem]
    if not problems:
        print("\nNothing is wrong.")
        return SUCCESS
    print(f"\n{len(problems)} {'problem' if len(problems) == 1 else 'problems'}:")
    print(table((each.name, each.problem) for each in problems))
    return FAILURE


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew doctor",
        allow_abbrev=False,
        description="Show versions, devices, plugins, disk and caches, and what is wrong with them.",
    )
    made.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="checkpoints",
        help="folder of runs; default ./checkpoints",
    )
    return made


def system() -> Iterator[Finding]:
    """Interpreter, system and processor."""
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("processor", f"{processor()}, {os.cpu_count()} cores")


def packages() -> Iterator[Finding]:
    """Dew's distributions and what they compute with."""
    found = package_versions()
    yield Finding("dew", ", ".join(f"{name} {found[name]}" for name in found if name.startswith("dew-")))
    for name in STACK:
        missing = "" if name in found else f"{name} is not installed: pip install {name}"
        yield Finding(name, found.get(name, "missing"), missing)
    yield Finding("wandb", optional("wandb", "pip install 'dew-core[wandb]' to report to Weights & Biases"))
    yield Finding("qwix", optional("qwix", "pip install 'dew-core[quantization]' to train in int8 or fp8"))


def optional(name: str, remedy: str) -> str:
    """The version of a package that need not be there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed; {remedy}"


def devices() -> Finding:
    """What JAX finds, asked in a process of its own that is stopped where a driver hangs."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"JAX found no device within {TIME_LIMIT_S} s; JAX_PLATFORMS=cpu leaves accelerators alone"
        return Finding("devices", "no answer", problem)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Finding("devices", "none", f"JAX does not start: {reason}")
    return Finding("devices", done.stdout.strip())


def plugins() -> Iterator[Finding]:
    """The plugins, and those left out."""
    catalog = installed()
    yield Finding("plugins", ", ".join(each.name for each in catalog.plugins))
    for problem in catalog.problems:
        yield Finding("left out", str(problem), "" if problem.disabled else str(problem))


def disk(folder: Path) -> Finding:
    """Room for checkpoints where runs are kept."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    problem = ""
    if free < LEAST_FREE:
        problem = f"{size(free)} free is too little for checkpoints; delete old runs or choose another disk"
    if not os.access(place, os.W_OK):
        problem = f"{place} cannot be written to; set --trainer.checkpoint-dir"
    return Finding("runs", f"{folder}, {size(free)} free", problem)


def caches() -> Iterator[Finding]:
    """What can be made again, and how much it takes."""
    folders = {"cache": dew_cache_dir(), "compiled": Path(default_compilation_cache_dir())}
    for name, path in folders.items():
        yield Finding(name, f"{path}, {size(folder_bytes(path))}")
