"""Kill a run at random moments, resume it each time, and see that it ends as the run that was left alone.

    uv run python tools/kill_run.py [--kills 50] [--seed 0] [--fresh] [--out FILE] [-- OPTIONS]

A tiny language model is trained by `dew train lm` in a process of its own. The process is ended by SIGKILL in
its start, in a step, in a save and in an evaluation by turns; the seed draws how many steps it may take first
and at which fraction of the phase, as long as the run that was left alone needed for it, the signal comes.
After each kill

- the newest complete checkpoint is at least the newest the journal announced and never older than before,
- no process of the killed one's group is left,
- the next process goes on from exactly that checkpoint,

and every run that reaches its end has the parameters, averages, moments, clocks, data position, losses and
validation values of the run that was left alone, bit for bit, and leaves no half-written folder behind.

One JSON line with the counts is printed and appended to FILE. `--fresh` starts whole interpreters instead of
forks of one that has done its imports.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAME = "run"
SAVE_EVERY, EVAL_EVERY = 3, 5
PHASES = ("start", "step", "save", "evaluation")
WORDS = [
    *("--model.config", '{"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_seq_len": 64}'),
    *("--data.seq-len", "16", "--data.max-bytes", "100000", "--data.val-windows", "64"),
    *("--ema-decay", "0.9", "--sample-tokens", "0", "--trainer.name", NAME, "--trainer.batch-size", "4"),
    *(
        "--trainer.accumulation",
        "2",
        "--trainer.checkpoint-every",
        str(SAVE_EVERY),
        "--trainer.log-every",
        "1",
    ),
    *("--trainer.eval-every", str(EVAL_EVERY), "--trainer.keep", "1"),
]
PRELOADED = ("orbax.checkpoint", "dew.cli", "dew.training.launch", "dew.objectives.lm.recipe")
PATIENCE_S = 600.0


class Broken(AssertionError):
    """A promise that a killed run did not keep."""


@dataclass(frozen=True)
class Moment:
    """When a process dies: in which phase, at least how many steps ahead, at which fraction of the phase."""

    phase: str
    ahead: int
    fraction: float


@dataclass
class Tally:
    """What a sweep has seen."""

    kills: Counter[str] = field(default_factory=Counter)
    due: Moment | None = None
    resumed: int = 0
    rounds: int = 0


def moments(seed: int) -> Iterator[Moment]:
    """The moments of a sweep, without end; a seed's are always the same."""
    draw = random.Random(seed)
    while True:
        for phase in PHASES:
            yield Moment(phase, draw.randint(1, 6), draw.random())


def command(words: Sequence[str], log: str, setup: Callable[[], None] | None) -> None:
    """Be `dew train lm` in a process group of its own that writes to `log`."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if setup is not None:
        setup()
    from dew.cli import main

    sys.exit(main(["train", "lm", *words]))


class Child:
    """One process that trains, and what its journal says from its start on."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        *,
        fresh: bool = False,
        setup: Callable[[], None] | None = None,
    ) -> None:
        self._journal = folder / NAME / "tracking" / "journal.jsonl"
        self._read = self._journal.stat().st_size if self._journal.exists() else 0
        self._rows: list[tuple[float, dict[str, Any]]] = []
        self.log = folder.with_name(f"{folder.name}.log")  # not on the disk that a case fills
        context = multiprocessing.get_context("spawn" if fresh else "forkserver")
        if not fresh:
            context.set_forkserver_preload([*PRELOADED])
        words = [*words, "--trainer.checkpoint-dir", str(folder)]
        self.process = context.Process(target=command, args=(words, str(self.log), setup))
        self.began, self.began_at = time.monotonic(), time.time()
        self.process.start()

    def rows(self) -> list[tuple[float, dict[str, Any]]]:
        """The rows so far, each with the moment at which it was seen."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read += len(whole)
            self._rows += [(time.monotonic(), json.loads(line)) for line in whole.splitlines()]
        return self._rows

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> float | None:
        """When the first such row was seen, or None where the process ended without one."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            alive = self.process.is_alive()
            for seen, row in self.rows():
                if wanted(row):
                    return seen
            if not alive:
                return None
            time.sleep(0.001)
        self.kill()
        raise Broken(f"nothing happened for {PATIENCE_S:g} s; {self.said()}")

    def kill(self) -> bool:
        """End the process by SIGKILL, with whatever it started; whether it was still alive.

        Raises:
            Broken: another process of its group outlives it.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        self._see_the_group_end()
        return self.process.exitcode == -signal.SIGKILL

    def end(self) -> int:
        """Wait for its end and return its exit status."""
        self.process.join(PATIENCE_S)
        if self.process.exitcode is None:
            self.kill()
            raise Broken(f"a run did not end within {PATIENCE_S:g} s; {self.said()}")
        return self.process.exitcode

    def said(self) -> str:
        """The end of what it wrote."""
        return "its last words: " + (self.log.read_text()[-6000:] if self.log.exists() else "none")

    def _see_the_group_end(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                os.killpg(self.process.pid or 0, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)
        os.killpg(self.process.pid or 0, signal.SIGKILL)
        raise Broken("a process outlives the killed one that started it")


def committed(folder: Path) -> int | None:
    """The newest complete checkpoint of the run in `folder`."""
    from dew.training.checkpoints import Checkpoints

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Checkpoints(folder / NAME / "checkpoints").latest


def journal(folder: Path) -> list[dict[str, Any]]:
    """The whole rows of a run's journal; a kill may have torn the last."""
    path = folder / NAME / "tracking" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def outcome(folder: Path) -> dict[str, Any]:
    """All that must not depend on kills: every stored leaf's bytes, the positions, every logged value."""
    import jax
    import numpy as np

    from dew.training.checkpoints import Checkpoints

    checkpoints = Checkpoints(folder / NAME / "checkpoints")
    stored, _ = checkpoints.restore()
    result: dict[str, Any] = {"step": checkpoints.latest, "positions": checkpoints.record()["positions"]}
    for path, leaf in jax.tree.leaves_with_path(stored):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        value = np.asarray(leaf)
        result[jax.tree_util.keystr(path, simple=True, separator="/")] = (str(value.dtype), value.tobytes())
    for row in journal(folder):
        if row["kind"] in ("metrics", "validation"):
            values = {
                name: value
                for name, value in row["values"].items()
                if not (name.endswith("_per_second") or name.startswith("performance/"))
            }
            result[f"{row['kind']} of step {row['step']}"] = repr(sorted(values.items()))
    return result


def compare(reference: Mapping[str, Any], folder: Path) -> None:
    """See that the finished run in `folder` came to what `reference` did.

    Raises:
        Broken: a leaf, a position or a logged value differs, or something half-written is left.
    """
    found = outcome(folder)
    other = sorted(name for name in reference.keys() | found.keys() if reference.get(name) != found.get(name))
    if other:
        raise Broken(f"{len(other)} of {len(reference)} parts differ from the run left alone: {other[:5]}")
    place = folder / NAME / "checkpoints"
    left = [path.name for path in place.iterdir() if not path.name.isdigit()]
    if left:
        raise Broken(f"the finished run leaves {left} in {place}")


def spans_of(child: Child) -> dict[str, float]:
    """How long each phase took in the run that was left alone, in seconds."""
    at = {(row["kind"], row["step"]): row["time"] for _, row in child.rows()}
    steps = sorted(step for kind, step in at if kind == "metrics")
    first = at["metrics", steps[0]]

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    plain = [step for step in steps[2:] if (step - 1) % EVAL_EVERY and (step - 1) % SAVE_EVERY]
    saved = [step for kind, step in at if kind == "checkpoint" and step % EVAL_EVERY]
    scored = [step for kind, step in at if kind == "validation"]
    return {
        "start": first - child.began_at,
        "step": median([at["metrics", step] - at["metrics", step - 1] for step in plain]),
        "save": median([at["checkpoint", step] - at["metrics", step] for step in saved]),
        "evaluation": median([at["validation", step] - at["metrics", step] for step in scored]),
    }


def strike(child: Child, moment: Moment, since: int, spans: Mapping[str, float]) -> bool:
    """Kill `child`, which goes on from step `since`, at `moment`; False where it ended before."""
    every = {"save": SAVE_EVERY, "evaluation": EVAL_EVERY}.get(moment.phase, 1)

    def anchor(row: dict[str, Any]) -> bool:
        return row["kind"] == "metrics" and row["step"] >= since + moment.ahead and row["step"] % every == 0

    seen = child.began if moment.phase == "start" else child.wait_for(anchor)
    if seen is not None:
        due = seen + moment.fraction * spans[moment.phase]
        while child.process.is_alive() and time.monotonic() < due:
            time.sleep(0.001)
    return child.kill()


def sweep(
    root: Path, *, kills: int, seed: int = 0, steps: int = 40, words: Sequence[str] = (), fresh: bool = False
) -> Tally:
    """Train once undisturbed, then kill runs of the same configuration `kills` times, and compare.

    Raises:
        Broken: a promise was not kept.
    """
    words = [
        *WORDS,
        "--trainer.compilation-cache-dir",
        str(root / "cache"),
        *words,
        "--trainer.steps",
        str(steps),
    ]
    for name in ("warm", "alone"):  # the first fills the compilation cache, the second's phases are measured
        (root / name).mkdir()
        alone = Child(root / name, words, fresh=fresh)
        if alone.end() != 0:
            raise Broken(f"the run that is left alone fails; {alone.said()}")
    spans, reference = spans_of(alone), outcome(root / "alone")
    compare(reference, root / "warm")
    print(
        "seconds of a phase: " + ", ".join(f"{name} {value:.3f}" for name, value in spans.items()), flush=True
    )
    tally, drawn = Tally(), moments(seed)
    while sum(tally.kills.values()) < kills:
        folder = root / f"round-{tally.rounds}"
        folder.mkdir()
        one_round(folder, words, kills, drawn, spans, tally, fresh=fresh)
        compare(reference, folder)
        tally.rounds += 1
    return tally


def one_round(
    folder: Path,
    words: Sequence[str],
    kills: int,
    drawn: Iterator[Moment],
    spans: Mapping[str, float],
    tally: Tally,
    *,
    fresh: bool,
) -> None:
    """Kill one run again and again until it ends all the same, or all kills are done and it may end."""
    while True:
        before = committed(folder)
        child = Child(folder, words, fresh=fresh)
        if sum(tally.kills.values()) >= kills:
            alive = False
            child.end()
        else:
            moment = tally.due = tally.due or next(drawn)  # one that came too late is tried again
            alive = strike(child, moment, before or 0, spans)
        started = next((row for _, row in child.rows() if row["kind"] in ("run", "resumed")), None)
        if started is not None and (started["step"] or None) != before:
            raise Broken(f"a process began at step {started['step']}, and checkpoint {before} was complete")
        tally.resumed += started is not None and started["kind"] == "resumed"
        if not alive:
            if child.process.exitcode != 0:
                raise Broken(f"a run failed with status {child.process.exitcode}; {child.said()}")
            return
        tally.due = None
        tally.kills[moment.phase] += 1
        told = max((row["step"] for row in journal(folder) if row["kind"] == "checkpoint"), default=0)
        after = committed(folder)
        if (after or 0) < max(told, before or 0):
            raise Broken(
                f"checkpoint {max(told, before or 0)} was complete; after {moment} the newest is {after}"
            )
        print(f"killed in {moment.phase} at {moment.fraction:.3f}: {before} -> {after}", flush=True)


def main() -> int:
    """Sweep and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fresh", action="store_true", help="whole interpreters instead of forks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", help="of dew train lm, after --")
    asked = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally = sweep(
            Path(folder),
            kills=asked.kills,
            seed=asked.seed,
            steps=asked.steps,
            words=asked.options,
            fresh=asked.fresh,
        )
    line = json.dumps(
        {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["tools/kill_run.py", *sys.argv[1:]]),
            "versions": {name: version(name) for name in ("dew-core", "jax", "orbax-checkpoint")},
            "kills": dict(tally.kills),
            "resumed": tally.resumed,
            "runs_compared": tally.rounds,
            "seconds": round(time.perf_counter() - began, 1),
        }
    )
    print(line, flush=True)
    if asked.out is not None:
        with asked.out.open("a") as file:
            file.write(line + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
