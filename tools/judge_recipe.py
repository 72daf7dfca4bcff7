"""Judge what a recipe learns by its own last validation, over rows that it did not train on.

    uv run python tools/judge_recipe.py jepa|dpo [--keys 0 1 2] [--out FILE] [-- OPTIONS OF dew train]

The recipe runs whole, as a command of its own, once for each key.

- jepa: a linear probe of textures. The left halves of the photographs fit it and the right halves are scored,
  for the target encoder, the same encoder before its first step, raw pixels and random convolutions. A key
  passes where the target encoder is above 0.95, at least 3 points above its own start and not under the
  random convolutions.
- dpo: the share of held-out sums of which the policy prefers the right one, by implicit reward. A key passes
  from 0.95 on.

One JSON line a key, with the command, its seconds, the date and the versions, is printed and appended to
FILE; the exit status says whether every key passed.
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
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ABOVE, GAIN = 0.95, 0.03
PACKAGES = ("jax", "flax", "optax")


def learned_textures(values: Mapping[str, float]) -> bool:
    """Whether the target encoder's linear probe is good enough."""
    probe = values["linear_probe"]
    return (
        probe > ABOVE
        and probe - values["linear_probe.random_init"] >= GAIN - 1e-9
        and probe >= values["linear_probe.random_convolutions"]
    )


def learned_preferences(values: Mapping[str, float]) -> bool:
    """Whether enough held-out pairs are ranked right."""
    return values["preference_accuracy"] >= ABOVE


GATES: Mapping[str, tuple[Callable[[Mapping[str, float]], bool], tuple[str, ...]]] = {
    "jepa": (learned_textures, ("dew-jepa", "scikit-image")),
    "dpo": (learned_preferences, ("dew-rl",)),
}
"""Recipe -> what its last validation must hold, and the distributions that had a part in it."""


def trained(recipe: str, key: int, options: Sequence[str], folder: Path) -> tuple[list[str], float]:
    """Run a recipe with one key into `folder`; the command's words and how long it took, in seconds."""
    words = ["dew", "train", recipe, "--trainer.seed", str(key), *options]
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


def judged(recipe: str, key: int, options: Sequence[str], folder: Path) -> dict[str, object]:
    """One key's result."""
    passes, distributions = GATES[recipe]
    words, seconds = trained(recipe, key, options, folder)
    step, values = last_validation(folder / f"key-{key}")
    return {
        "recipe": recipe,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(words),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in (*distributions, *PACKAGES)},
        "key": key,
        "seconds": round(seconds, 1),
        "steps": step,
        "values": {name: round(value, 5) for name, value in values.items()},
        "passed": passes(values),
    }


def main() -> int:
    """Judge every key and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", choices=sorted(GATES))
    parser.add_argument("--keys", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", help="of dew train, after --")
    asked = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for key in asked.keys:
            result = judged(asked.recipe, key, asked.options, Path(folder))
            line = json.dumps(result)
            print(line, flush=True)
            if asked.out is not None:
                with asked.out.open("a") as file:
                    file.write(line + "\n")
            good = good and bool(result["passed"])
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
