"""From `dew train lm` to the first finished step, cold and with a warm compile cache, in units of an import.

The unit is a process that imports jax, flax.linen, optax and orbax.checkpoint and ends. A run is watched
through its journal: the first training loss in it marks the first finished step. The text is tokenized before
the measurement, by a run that is thrown away.

    uv run python benchmarks/start_time.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import report, spread

IMPORTS = "import jax, flax.linen, optax, orbax.checkpoint"
TIMEOUT_S = 300


def import_seconds() -> float:
    """Seconds of a process that only imports the libraries."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.perf_counter() - start


def first_step_seconds(folder: Path, cache: Path) -> float:
    """Seconds from starting the command until its first training loss is in the journal."""
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    options = {
        "checkpoint-dir": str(runs),
        "name": "start",
        "steps": "1",
        "log-every": "1",
        "eval-every": "None",
        "checkpoint-every": "None",
        "compilation-cache-dir": str(cache),
    }
    arguments = [word for name, value in options.items() for word in (f"--trainer.{name}", value)]
    journal = runs / "start" / "tracking" / "journal.jsonl"
    start = time.perf_counter()
    command = [sys.executable, "-m", "dew", "train", "lm", *arguments]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while not (journal.exists() and "train/loss" in journal.read_text()):
            if process.poll() is not None or time.perf_counter() - start > TIMEOUT_S:
                process.kill()
                sys.exit(f"no first step: {(folder / 'output.txt').read_text()[-2000:]}")
            time.sleep(0.02)
        seconds = time.perf_counter() - start
        process.wait(timeout=TIMEOUT_S)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    imports: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_step_seconds(folder, folder / "cache")
        for index in range(options.rounds):
            imports.append(import_seconds())
            cold.append(first_step_seconds(folder, folder / f"empty{index}"))
            warm.append(first_step_seconds(folder, folder / "cache"))
    unit = statistics.median(imports)
    report(
        "start_time",
        config="dew train lm, its preset, one step",
        imports=spread(imports),
        cold=spread(cold),
        warm=spread(warm),
        cold_in_imports=round(statistics.median(cold) / unit, 2),
        warm_in_imports=round(statistics.median(warm) / unit, 2),
    )


if __name__ == "__main__":
    main()
