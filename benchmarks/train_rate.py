"""Training rate against transformers' Llama in torch: equal weights, AdamW, float32 and cores, in turns.

Dew trains in this process; each torch variant is a process of its own that steps when told to.

    uv run python benchmarks/train_rate.py --torch-python PYTHON [--rounds 10] [--modes eager compiled]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import decoder
import jax
import numpy as np
from results import report, spread

from dew.training import Trainer
from dew.training.host_memory import keep_freed_memory

STEPS = 2
"""Steps of one turn."""


def torch_weights(params: dict) -> dict[str, np.ndarray]:
    """Dew's parameters under the names and in the layout of transformers' Llama."""
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
    }
    weights: dict[str, np.ndarray] = {}
    for name, array in flat.items():
        module, _, kind = name.rpartition(".")
        module = module if module == "lm_head" else "model." + module.replace("layers_", "layers.")
        weights[module + ".weight"] = array.T if kind == "kernel" else array
    return weights


class TorchWorker:
    """A process that trains the same model in torch, `STEPS` steps each time it is asked."""

    def __init__(self, python: str, mode: str, folder: str) -> None:
        script = str(Path(__file__).with_name("torch_llama.py"))
        self._process = subprocess.Popen(
            [python, script, mode, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions = self._line()
        self.first_loss = float(self._line())

    def turn(self) -> float:
        """Seconds for a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{STEPS}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the torch worker ended with status {self._process.wait()}")
        return line.strip()


def dew_steps(folder: str) -> tuple[float, Callable[[], float]]:
    """The first loss, and a function that returns the seconds of a step."""
    trainer = Trainer(decoder.objective(), decoder.optimizer(), key=jax.random.key(0))
    state, _, _ = trainer.place()
    np.savez(f"{folder}/weights.npz", **torch_weights(state.params["params"]))
    np.save(f"{folder}/ids.npy", decoder.ids())
    batch = {"text": jax.numpy.asarray(decoder.ids())}
    step = trainer.compile(state, batch)
    result = step(state, batch)
    first = float(result.loss)

    def turn() -> float:
        nonlocal result
        start = time.perf_counter()
        for _ in range(STEPS):
            result = step(result.state, batch)
            float(result.loss)
        return (time.perf_counter() - start) / STEPS

    turn()
    return first, turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", default=["eager"], choices=["eager", "compiled"])
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        first, turn = dew_steps(folder)
        workers = {mode: TorchWorker(options.torch_python, mode, folder) for mode in options.modes}
        for mode, worker in workers.items():
            if abs(worker.first_loss - first) > 1e-4:
                sys.exit(
                    f"torch {mode} starts at loss {worker.first_loss}, Dew at {first}: not the same model"
                )
        ours: list[float] = []
        theirs: dict[str, list[float]] = {mode: [] for mode in workers}
        for _ in range(options.rounds):
            ours.append(turn())
            for mode, worker in workers.items():
                theirs[mode].append(worker.turn())
        for mode, worker in workers.items():
            mine, torch = spread(ours), spread(theirs[mode])
            report(
                "train_rate",
                config=decoder.CONFIG,
                against=f"transformers Llama, torch {mode}",
                torch_versions=worker.versions,
                first_loss=[first, worker.first_loss],
                dew=mine,
                torch=torch,
                rate_ratio_median=round(torch["median_ms"] / mine["median_ms"], 3),
                rate_ratio_best=round(torch["best_ms"] / mine["best_ms"], 3),
            )
            worker.close()


if __name__ == "__main__":
    main()
