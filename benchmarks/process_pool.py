"""Two processes of one device against one process of two devices: the same work on the same cores.

Each turn is a pool of its own, so start and compilation are left out: what is timed is the steps after the
first few.

    uv run python benchmarks/process_pool.py [--rounds 5] [--steps 20]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import decoder
import jax
from results import report, spread

from dew.testing.pool import run_pool
from dew.training import Trainer, data_partition
from dew.training.distributed import DevicePrefetchIterator

WARM = 3


def steps(count: int) -> dict[str, object]:
    """Seconds of a step, and the last loss."""
    trainer = Trainer(decoder.objective(), decoder.optimizer(), key=jax.random.key(0))
    state, _, _ = trainer.place()
    source = decoder.dataset().train(data_partition(trainer.mesh))
    with DevicePrefetchIterator(source, trainer.mesh) as batches:
        batch = next(batches)
        compiled = trainer.compile(state, batch)
        for index in range(WARM + count):
            if index == WARM:
                jax.block_until_ready(state)
                start = time.perf_counter()
            result = compiled(state, batch)
            state, batch = result.state, next(batches)
        jax.block_until_ready(state)
        return {"seconds": (time.perf_counter() - start) / count, "loss": float(result.loss)}


def turn(processes: int, count: int) -> tuple[float, float]:
    outcomes = run_pool(
        f"{__file__}:steps", processes=processes, devices=2, arguments={"count": count}, timeout_s=600
    )
    for outcome in outcomes:
        if outcome.status or outcome.late:
            raise SystemExit(outcome.output)
    return max(outcome.value["seconds"] for outcome in outcomes), outcomes[0].value["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    pairs = [(turn(1, options.steps), turn(2, options.steps)) for _ in range(options.rounds)]
    for (_, one), (_, two) in pairs:
        if abs(one - two) > 1e-5:
            raise SystemExit(f"the two trained differently: losses {one} and {two}")
    ratios = [two[0] / one[0] for one, two in pairs]
    report(
        "process_pool",
        config=decoder.CONFIG,
        one=spread([one[0] for one, _ in pairs]),
        two=spread([two[0] for _, two in pairs]),
        ratio_median=round(statistics.median(ratios), 3),
        ratio_range=[round(min(ratios), 3), round(max(ratios), 3)],
    )


if __name__ == "__main__":
    main()
