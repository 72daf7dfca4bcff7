"""Judge what `dew train grpo` learns, on several seeds and against a policy that does not move.

    uv run python tools/judge_grpo.py [--seeds 0 1 2] [--control 1] [--work FOLDER] [--out FILE]

Every seed is one run of the command as it stands, timed from its start to its end. The policy is then opened
with `dew.pipeline` and asked all 100 sums at temperature 0; an answer is right if it is the last digit that
Python computes. The control is the same command at a learning rate of 0: warm start, rollouts and rewards,
and no learning. One JSON line a run, with the curves of its journal, is printed and appended to FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

CONTROL = ("--optim.learning-rate", "0")
CURVES = ("reward", "kl", "clip_fraction", "entropy", "length", "no_spread")
PACKAGES = ("dew-rl", "jax")
EVERY = 50
"""Steps between the points of a curve that are kept."""


def trained(seed: int, work: Path, name: str, extra: tuple[str, ...]) -> tuple[str, float]:
    """Run the command; return it as it was written and its seconds from start to end."""
    words = ["dew", "train", "grpo", "--trainer.seed", str(seed), *extra]
    place = ["--trainer.checkpoint-dir", str(work), "--trainer.name", name]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", *words, *place], check=True, stdout=subprocess.DEVNULL)
    return " ".join(words), time.monotonic() - began


def greedy_reward(run: Path) -> float:
    """The part of the 100 sums that the trained policy answers with the right last digit."""
    import dew
    from dew.sampling import Sampling

    task: Any = dew.pipeline(run)
    pairs = [(first, second) for first in range(10) for second in range(10)]
    best = Sampling(temperature=0.0, eos_id=task.sampling.eos_id)
    answers = task([f"{first}+{second}=" for first, second in pairs], seed=0, sampling=best).text
    right = [
        answer == str((first + second) % 10) for answer, (first, second) in zip(answers, pairs, strict=True)
    ]
    return sum(right) / len(right)


def curves(run: Path) -> dict[str, dict[int, float]]:
    """The journal's curves, thinned."""
    from dew.telemetry.history import read_journal

    history = read_journal(run)
    kept = {f"train/{name}": history.metrics[f"train/{name}"] for name in CURVES}
    series = {**kept, **history.validation}
    return {
        name: {step: round(value, 4) for step, value in points.items() if step % EVERY == 0 or step == 10}
        for name, points in series.items()
    }


def judged(seed: int, work: Path, *, control: bool) -> dict[str, Any]:
    """Train on one seed and measure."""
    name = f"{'control' if control else 'grpo'}-{seed}"
    command, seconds = trained(seed, work, name, CONTROL if control else ())
    return {
        "benchmark": "grpo",
        "kind": "control" if control else "trained",
        "seed": seed,
        "greedy_reward": greedy_reward(work / name),
        "seconds": round(seconds, 1),
        "cores": os.cpu_count(),
        "command": command,
        "judge": "tools/judge_grpo.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {package: version(package) for package in PACKAGES},
        "curves": curves(work / name),
    }


def main(argv: list[str]) -> None:
    """Train and judge as `argv` says."""
    parser = argparse.ArgumentParser(description="Judge what dew train grpo learns.")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="seeds to train on")
    parser.add_argument(
        "--control", nargs="*", type=int, default=[0], help="seeds of the run that stands still"
    )
    parser.add_argument("--work", type=Path, help="folder of the runs; default a temporary one")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        for control, seeds in ((False, options.seeds), (True, options.control)):
            for seed in seeds:
                line = json.dumps(judged(seed, work, control=control))
                print(line, flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
