"""How much `Trainer.fit` adds to a hand-written jitted step of the same objective.

Both run in one process and take turns: `fit` runs a segment up to a log tick, the tracker then times the same
number of hand-written steps, and hands back. Neither donates, neither keeps a moving average.

    uv run python benchmarks/trainer_overhead.py [--segments 20] [--steps 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import decoder
import jax
import optax
from results import report, spread

from dew.objectives.base import Step
from dew.telemetry.tracker import Tracker
from dew.training import Trainer
from dew.training.host_memory import keep_freed_memory


def hand_written() -> Callable[[object, object, jax.Array, Mapping[str, jax.Array]], tuple]:
    """A jitted Optax step as one would write it for this objective alone."""
    objective, optimizer = decoder.objective(), decoder.optimizer()

    def step(variables, moments, key, batch):
        def loss_of(params):
            stats, _ = objective.loss({**variables, "params": params}, batch, clock)
            return stats.total / stats.mass

        clock = Step(step=0, key=key, ema=None)
        loss, gradients = jax.value_and_grad(loss_of)(variables["params"])
        updates, moments = optimizer.update(gradients, moments, variables["params"])
        return {**variables, "params": optax.apply_updates(variables["params"], updates)}, moments, loss

    return jax.jit(step)


class Turns(Tracker):
    """Times `fit` between log ticks, and as many hand-written steps after each."""

    def __init__(self, steps: int) -> None:
        self.fit_seconds: list[float] = []
        self.hand_seconds: list[float] = []
        self._steps = steps
        self._step = hand_written()
        self._variables = decoder.objective().init(jax.random.key(0))
        self._moments = decoder.optimizer().init(self._variables["params"])
        self._batch = {"text": jax.numpy.asarray(decoder.ids())}
        self._run()
        self._mark: float | None = None

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if self._mark is not None:
            self.fit_seconds.append((time.perf_counter() - self._mark) / self._steps)
            start = time.perf_counter()
            self._run()
            self.hand_seconds.append((time.perf_counter() - start) / self._steps)
        self._mark = time.perf_counter()

    def temporaries(self) -> int:
        """Bytes of temporary memory of the hand-written step."""
        arguments = (self._variables, self._moments, jax.random.key(0), self._batch)
        return self._step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    def _run(self) -> None:
        for index in range(self._steps):
            key = jax.random.fold_in(jax.random.key(0), index)
            self._variables, self._moments, loss = self._step(
                self._variables, self._moments, key, self._batch
            )
        float(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()
    turns = Turns(options.steps)
    trainer = Trainer(decoder.objective(), decoder.optimizer(), key=jax.random.key(0), tracker=turns)
    state = trainer.fit(
        decoder.dataset(), steps=options.steps * (options.segments + 1), log_every=options.steps
    )
    ratios = [fit / hand for fit, hand in zip(turns.fit_seconds, turns.hand_seconds, strict=True)]
    batch = {"text": jax.numpy.asarray(decoder.ids())}
    fit_bytes = (
        trainer.compile(state, batch).lower(state, batch).compile().memory_analysis().temp_size_in_bytes
    )
    report(
        "trainer_overhead",
        config=decoder.CONFIG,
        fit=spread(turns.fit_seconds),
        hand_written=spread(turns.hand_seconds),
        ratio_median=round(statistics.median(ratios), 4),
        ratio_best=round(min(turns.fit_seconds) / min(turns.hand_seconds), 4),
        temporary_bytes={"fit": fit_bytes, "hand_written": turns.temporaries()},
        memory_ratio=round(fit_bytes / turns.temporaries(), 4),
    )


if __name__ == "__main__":
    main()
