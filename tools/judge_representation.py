"""Judge what `dew train jepa` learns without labels, by a linear probe on texture pieces it did not see.

    uv run python tools/judge_representation.py [--keys 0 1 2] [--out FILE] [-- OPTIONS OF dew train jepa]

The recipe runs whole, as a command of its own, once for each key. Its last validation holds the accuracy of
the target encoder, of the same encoder before its first step, of raw pixels and of random convolutions, over
the same fixed pieces: the left halves of the photographs fit the probe and the right halves are scored. A key
passes where the target encoder is above 0.95, at least 3 points above its own start and not under the random
convolutions. One JSON line a key, with the command, its seconds, the date and the versions, is printed and
appended to FILE; the exit status says whether every key passed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ABOVE, GAIN = 0.95, 0.03
PACKAGES = ("dew-jepa", "jax", "flax", "optax", "scikit-image")


def trained(key: int, options: Sequence[str], folder: Path) -> tuple[list[str], float]:
    """Run the recipe with one key into `folder`; the command's words and how long it took, in seconds."""
    words = ["dew", "train", "jepa", "--trainer.seed", str(key), *options]
    place = ["--trainer.checkpoint-dir", str(folder), "--trainer.name", f"key-{key}"]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *words, *place], check=True)
    return words, time.perf_counter() - start


def last_validation(run: Path) -> tuple[int, dict[str, float]]:
    """The step and the values of a run's last validation."""
    lines = (run / "tracking" / "journal.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "validation"]
    values = {name.partition("/")[2]: value for name, value in records[-1]["values"].items()}
    return records[-1]["step"], values


def passes(values: Mapping[str, float]) -> bool:
    """Whether the target encoder's linear probe is good enough."""
    probe = values["linear_probe"]
    return (
        probe > ABOVE
        and probe - values["linear_probe.random_init"] >= GAIN - 1e-9
        and probe >= values["linear_probe.random_convolutions"]
    )


def judged(key: int, options: Sequence[str], folder: Path) -> dict[str, object]:
    """One key's result."""
    words, seconds = trained(key, options, folder)
    step, values = last_validation(folder / f"key-{key}")
    return {
        "judge": "representation",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(words),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in PACKAGES},
        "key": key,
        "seconds": round(seconds, 1),
        "steps": step,
        "values": {name: round(value, 5) for name, value in values.items()},
        "passed": passes(values),
    }


def main() -> int:
    """Judge every key and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", help="of dew train jepa, after --")
    asked = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for key in asked.keys:
            result = judged(key, asked.options, Path(folder))
            line = json.dumps(result)
            print(line, flush=True)
            if asked.out is not None:
                with asked.out.open("a") as file:
                    file.write(line + "\n")
            good = good and bool(result["passed"])
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
