"""What a checkpoint costs: how long `save` blocks, until it is durable, its bytes, and a restore.

Beside each stands the plainest way to do it: the same arrays written by `numpy.save`, made durable, read.
The two take turns. Every float is drawn at random: storage compresses, and zeros would flatter it.

    uv run python benchmarks/checkpoint_cost.py [--rounds 7] [--width 1024]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from results import report, spread

from dew.data.dataset import DataPartition
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.training import Checkpoints, Trainer
from dew.training.placement import described


def trainer(width: int) -> Trainer:
    """AdamW over a decoder of eight layers, with a moving average."""
    model = CausalTransformer(vocab_size=4096, hidden_size=width, num_layers=8, num_heads=8, max_seq_len=128)
    return Trainer(LMObjective(model, 128), optax.adamw(1e-3), key=jax.random.key(0))


def drawn(state: Any) -> Any:
    """`state` with every float drawn at random."""
    leaves, structure = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(1), len(leaves))

    def draw(leaf: jax.Array, key: jax.Array) -> jax.Array:
        if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return leaf
        return jax.device_put(jax.random.normal(key, leaf.shape, leaf.dtype), leaf.sharding)

    return jax.tree.unflatten(structure, map(draw, leaves, keys))


def arrays(state: Any) -> list[np.ndarray]:
    """Every leaf on the host, the key as its words."""
    plain = jax.tree.map(
        lambda leaf: (
            jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ),
        state,
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(plain)]


def written(folder: Path, leaves: list[np.ndarray]) -> None:
    """Each array in a file of its own, durable."""
    for index, leaf in enumerate(leaves):
        with (folder / f"{index}.npy").open("wb") as file:
            np.save(file, leaf)
            os.fsync(file.fileno())


def timed(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    made = trainer(options.width)
    state, shardings, _ = made.place()
    state = jax.block_until_ready(drawn(state))
    leaves = arrays(state)
    share, seconds = DataPartition(), {name: [] for name in ("blocked", "durable", "raw", "restored", "read")}
    for step in range(1, options.rounds + 2):
        with tempfile.TemporaryDirectory() as held:
            checkpoints, plain = Checkpoints(f"{held}/run"), Path(held, "plain")
            plain.mkdir()
            start = time.perf_counter()
            checkpoints.save(step, state, b"position", share=share)
            blocked = time.perf_counter() - start
            checkpoints.wait()
            durable = time.perf_counter() - start
            raw, _ = timed(lambda folder=plain: written(folder, leaves))
            template = described(state, shardings)
            restored, _ = timed(
                lambda store=checkpoints, at=step, like=template: jax.block_until_ready(
                    store.restore(like, at, share=share)[0]
                )
            )
            read, _ = timed(lambda folder=plain: [np.load(each) for each in folder.iterdir()])
            stored = size(Path(checkpoints.path(step)))
        if step > 1:  # the first save opens what later ones use again
            for name, value in zip(seconds, (blocked, durable, raw, restored, read), strict=True):
                seconds[name].append(value)
    total = sum(leaf.nbytes for leaf in leaves)
    report(
        "checkpoint_cost",
        config={"width": options.width, "layers": 8, "state": "params, adamw, average", "dtype": "float32"},
        **{name: spread(values) for name, values in seconds.items()},
        bytes={"stored": stored, "raw": total, "ratio": round(stored / total, 4)},
        blocked_over_raw_write=ratio(seconds["blocked"], seconds["raw"]),
        durable_over_raw_write=ratio(seconds["durable"], seconds["raw"]),
        restored_over_raw_read=ratio(seconds["restored"], seconds["read"]),
    )


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """Median and extremes of the turns' ratios."""
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    found = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
