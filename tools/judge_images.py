"""Judge the images of a class-conditional run by what real images say.

    uv run python tools/judge_images.py RUN... [--keys 0 1 2] [--count 1000] [--out FILE]

For every run, key and guidance scale it draws `count` images, the classes in turns, and measures:

- agreement: how often a classifier names the class that was asked for. The classifier has seen the run's
  held-out split alone, its images turned and shifted a little; its own accuracy is measured on the training
  images, which it has not seen.
- variance: the variance of each pixel within a class, averaged over pixels, over that of the real training
  images of the class; the mean and the least over the classes.
- closeness: of the distances from held-out real images to their nearest training image, take the quantiles
  0.05 and 0.5; the part of the drawn images that lies closer than each. A model that copies lies above 0.05
  and 0.5.

One JSON line a draw, with the command, the date and the versions, is printed and appended to FILE.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

SCALES = (1.0, 3.0)
QUANTILES = (0.05, 0.5)
PACKAGES = ("dew-diffusion", "jax", "scikit-learn")


@dataclass(frozen=True)
class Real:
    """The images [N, H, W, C] in [-1, 1] and labels [N] of one split."""

    images: np.ndarray
    labels: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """[N, H W C]."""
        return self.images.reshape(len(self.images), -1)


def read_split(records: Any) -> Real:
    """All records of a split."""
    rows = [records[index] for index in range(len(records))]
    images = np.stack([row["image"] for row in rows]).astype(np.float64) / 127.5 - 1
    return Real(images, np.asarray([row["label"] for row in rows]))


def varied(real: Real) -> Real:
    """Every image, and copies turned by 8 degrees either way and shifted by a thirtieth or more of a side."""
    from scipy import ndimage

    step = max(0.5, real.images.shape[1] / 28)
    moves = [(0.0, 0.0), (step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step)]
    copies = [
        ndimage.shift(real.images, (0, *move, 0), order=1, mode="constant", cval=-1.0) for move in moves
    ]
    copies += [
        ndimage.rotate(real.images, angle, axes=(1, 2), reshape=False, order=1, mode="constant", cval=-1.0)
        for angle in (-8, 8)
    ]
    return Real(np.concatenate(copies), np.tile(real.labels, len(copies)))


def fitted_judge(held_out: Real) -> Any:
    """A support-vector machine on the held-out images and their variations."""
    from sklearn.svm import SVC

    seen = varied(held_out)
    return SVC(C=10.0, gamma="scale").fit(seen.flat, seen.labels)


def class_variance(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The variance of a pixel within each class, averaged over the pixels."""
    return np.asarray([images[labels == label].var(axis=0).mean() for label in np.unique(labels)])


def nearest_distances(images: np.ndarray, training: np.ndarray) -> np.ndarray:
    """The Euclidean distance from each row of `images` to the nearest row of `training`."""
    squared = (images**2).sum(1)[:, None] - 2 * images @ training.T + (training**2).sum(1)[None]
    return np.sqrt(np.maximum(squared.min(axis=1), 0))


def measures(
    images: np.ndarray, labels: np.ndarray, *, train: Real, held_out: Real, judge: Any
) -> dict[str, Any]:
    """What the module's docstring lists, for drawn `images` [N, H, W, C] of classes `labels`."""
    flat = images.reshape(len(images), -1).astype(np.float64)
    ratios = class_variance(flat, labels) / class_variance(train.flat, train.labels)
    real = nearest_distances(held_out.flat, train.flat)
    drawn = nearest_distances(flat, train.flat)
    closer = {str(level): float((drawn < np.quantile(real, level)).mean()) for level in QUANTILES}
    return {
        "agreement": float((judge.predict(flat) == labels).mean()),
        "variance_ratio_mean": float(ratios.mean()),
        "variance_ratio_least": float(ratios.min()),
        "closer_than_held_out_quantile": closer,
    }


def draws(run: str, keys: list[int], count: int) -> Iterator[tuple[int, float, np.ndarray, np.ndarray]]:
    """Key, guidance scale, images and labels of every draw from a run."""
    from dew.inference.images import TextToImage
    from dew.sampling.images import CFG
    from dew.training.runs import load_run

    config = load_run(run).config
    names = config.data.class_names  # type: ignore[attr-defined]
    labels = np.arange(count) % len(names)
    average = config.ema_decay is not None  # type: ignore[attr-defined]
    task = TextToImage.from_run(run, ema=average)
    for key in keys:
        for scale in SCALES:
            drawn = task([names[label] for label in labels], guidance=CFG(scale), seed=key)
            yield key, scale, np.asarray(drawn.host().images), labels


def judged(run: str, keys: list[int], count: int) -> Iterator[dict[str, Any]]:
    """One record a draw."""
    from dew.training.runs import load_run

    config = load_run(run).config
    data: Any = config.data
    train, held_out = read_split(data.records("train")), read_split(data.records(data.val_split))
    judge = fitted_judge(held_out)
    accuracy = float(judge.score(train.flat, train.labels))
    for key, scale, images, labels in draws(run, keys, count):
        yield {
            "data": type(data).__name__,
            "training_seed": config.trainer.seed,
            "steps": config.trainer.steps,
            "sampling_key": key,
            "guidance": scale,
            "images": count,
            "judge_accuracy_on_unseen_real_images": accuracy,
            **measures(images, labels, train=train, held_out=held_out, judge=judge),
        }


def main(argv: list[str]) -> None:
    """Judge the runs that `argv` names."""
    parser = argparse.ArgumentParser(description="Judge the images of class-conditional diffusion runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument("--keys", nargs="+", type=int, default=[0, 1, 2], help="seeds to draw with")
    parser.add_argument("--count", type=int, default=1000, help="images a draw")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    options = parser.parse_args(argv)
    about = {
        "command": "tools/judge_images.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    for run in options.runs:
        for record in judged(run, options.keys, options.count):
            line = json.dumps({**record, **about})
            print(line, flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
