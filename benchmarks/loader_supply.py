"""Whether a step waits for its data: token windows, packed documents, and decoded pictures.

Each kind of data trains a model of its own through `Trainer.fit`, whose account of time gives the share of
the steps spent waiting. Beside it stands what the pipeline can supply with nobody consuming.

    uv run python benchmarks/loader_supply.py [--steps 60] [--only windows packed pictures]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoder
import jax
import numpy as np
import optax
from PIL import Image
from results import report

from dew.data import DataPartition, PackedTokens, TokenWindows
from dew.data.dataset import Dataset
from dew.data.images import ImageFolder
from dew.objectives.base import Objective
from dew.objectives.diffusion import DiffusionRunConfig
from dew.telemetry.tracker import Tracker
from dew.training import Trainer
from dew.training.host_memory import keep_freed_memory

LOG_EVERY, SUPPLIED = 10, 100
IDS, PICTURES, SIZE = 4_000_000, 2_000, 96
type Case = tuple[Objective[Any, Any], Dataset, dict[str, object]]


class Waits(Tracker):
    """Keeps the shares of time waited and the seconds of steps."""

    def __init__(self) -> None:
        self.share: list[float] = []
        self.step: list[float] = []

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if "performance/data_wait" in values:
            self.share.append(values["performance/data_wait"])
            self.step.append(values["performance/step_seconds"])


def corpus(folder: Path) -> None:
    """Documents of random bytes, some 400 long, each ended by 0."""
    draw = np.random.default_rng(0)
    ids = draw.integers(1, decoder.VOCAB, IDS).astype(np.uint8)
    ids[np.cumsum(draw.integers(20, 800, IDS // 400)) % IDS] = 0
    ids[-1] = 0
    ids.tofile(folder / "train.bin")


def windows(folder: Path) -> Case:
    corpus(folder)
    spec = TokenWindows(path=str(folder), dtype="uint8", seq_len=decoder.LENGTH)
    return decoder.objective(), spec.load(batch=decoder.ROWS), decoder.CONFIG


def packed(folder: Path) -> Case:
    corpus(folder)
    spec = PackedTokens(path=str(folder), dtype="uint8", document_end=0, seq_len=decoder.LENGTH)
    return decoder.objective(), spec.load(batch=decoder.ROWS), decoder.CONFIG


def pictures(folder: Path) -> Case:
    """PNG files of 96 pixels, decoded and scaled to 32 for the diffusion recipe's transformer."""
    draw = np.random.default_rng(0)
    for index in range(PICTURES):
        place = folder / f"class{index % 10}"
        place.mkdir(exist_ok=True)
        coarse = draw.integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(coarse).resize((SIZE, SIZE)).save(place / f"{index}.png")
    data = ImageFolder(path=str(folder), image_size=32)
    config = dataclasses.replace(DiffusionRunConfig.starting_point(), data=data)
    return config.build(), data.load(batch=32), {"batch": 32, "png": SIZE, "image_size": 32}


CASES: Mapping[str, Callable[[Path], Case]] = {"windows": windows, "packed": packed, "pictures": pictures}


def supply(data: Dataset) -> float:
    """Seconds of a batch when nobody trains."""
    source = data.train(DataPartition())
    next(source)
    began = time.perf_counter()
    for _ in range(SUPPLIED):
        next(source)
    return (time.perf_counter() - began) / SUPPLIED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    keep_freed_memory()
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            objective, data, config = CASES[name](Path(folder))
            waits = Waits()
            trainer = Trainer(objective, optax.adamw(1e-4), key=jax.random.key(0), tracker=waits)
            trainer.fit(data, steps=options.steps, log_every=LOG_EVERY)
            alone = supply(data)
        step = statistics.median(waits.step)
        report(
            "loader_supply",
            config={"data": name, **config},
            data_wait={
                "median": round(statistics.median(waits.share), 5),
                "most": round(max(waits.share), 5),
                "samples": len(waits.share),
            },
            step_ms=round(1e3 * step, 2),
            supply_ms=round(1e3 * alone, 3),
            supply_over_consumption=round(step / alone, 1),
        )


if __name__ == "__main__":
    main()
