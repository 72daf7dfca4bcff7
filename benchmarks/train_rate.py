"""Training rate against transformers in torch: equal weights, AdamW, float32 and cores, in turns.

Dew trains in this process; each torch variant is a process of its own that reads the model Dew has written
for it, and steps when told to.

    uv run python benchmarks/train_rate.py --torch-python PYTHON [--model small] [--rounds 10]
        [--modes eager compiled]

Models: `small`, the one the other benchmarks train, 8 rows of 256 bytes; and decoders of about 30 million
parameters like Llama, Mixtral (8 experts, of which 2 a token) and Gemma, 4 rows of 256 of 8,192 ids.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable

import decoder
import jax
import models
import numpy as np
from results import report, spread
from worker import Worker

from dew.interop import save_pretrained_decoder
from dew.objectives.lm import LMObjective
from dew.training import Trainer
from dew.training.host_memory import keep_freed_memory

STEPS = 2
"""Steps of one turn."""


class TorchWorker:
    """A process that trains the same model in torch, `STEPS` steps each time it is asked."""

    def __init__(self, python: str, mode: str, folder: str) -> None:
        self._worker = Worker(python, "torch_decoder.py", mode, f"{folder}/model", f"{folder}/ids.npy")
        self.versions = self._worker.line()
        self.first_loss = float(self._worker.line())

    def turn(self) -> float:
        """Seconds for a step."""
        return float(self._worker.ask(str(STEPS)))

    def close(self) -> None:
        self._worker.close()


def dew_steps(folder: str, name: str) -> tuple[float, Callable[[], float], int]:
    """The first loss, a function that returns the seconds of a step, and the count of parameters."""
    model, rows = models.model(name), models.ROWS[name]
    objective = LMObjective(model, decoder.LENGTH, ema_decay=None, token_accuracy=False)
    trainer = Trainer(objective, decoder.optimizer(), key=jax.random.key(0))
    state, _, _ = trainer.place()
    save_pretrained_decoder(model, state.params, f"{folder}/model")
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (rows, decoder.LENGTH + 1)).astype(np.int32)
    np.save(f"{folder}/ids.npy", ids)
    batch = {"text": jax.numpy.asarray(ids)}
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
    return first, turn, sum(leaf.size for leaf in jax.tree.leaves(state.params))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--model", default="small", choices=models.NAMES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", default=["eager"], choices=["eager", "compiled"])
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        first, turn, parameters = dew_steps(folder, options.model)
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
                config=decoder.CONFIG if options.model == "small" else models.described(options.model),
                model=options.model,
                parameters=parameters,
                against=f"transformers, torch {mode}",
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
