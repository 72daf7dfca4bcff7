"""How often the train step is compiled over a run and its resume, and the constants it holds.

Each half of the run is a process of its own: 4 steps with a checkpoint, then 4 more from it.

    uv run python benchmarks/compile_count.py
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import subprocess
import sys
import tempfile

import decoder
import jax
from results import report

from dew.training import Checkpoints, Trainer

COMPILED = re.compile(r"Finished XLA compilation of (\S+)")
CONSTANT = re.compile(r"= (pred|[suf]\d+|bf16)\[([\d,]+)\]\S* constant\(")
STEPS = 4
"""Steps of one process."""


class Compilations(logging.Handler):
    """Counts the functions that JAX says it compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = COMPILED.search(record.getMessage())
        if found:
            self.names.append(found.group(1))


def largest_constant(text: str) -> int:
    """Bytes of the largest constant in a compiled program's text."""
    sizes = [0]
    for kind, dims in CONSTANT.findall(text):
        bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
        sizes.append(math.prod(map(int, dims.split(","))) * bits // 8)
    return max(sizes)


def half(folder: str) -> dict[str, object]:
    """Train `STEPS` further steps in `folder`; return the counts of this process."""
    counted = Compilations()
    logging.getLogger("jax").addHandler(counted)
    jax.config.update("jax_log_compiles", True)
    checkpoints = Checkpoints(folder)
    done = checkpoints.latest or 0
    trainer = Trainer(
        decoder.objective(), decoder.optimizer(), key=jax.random.key(0), checkpoints=checkpoints
    )
    state = trainer.fit(decoder.dataset(), steps=done + STEPS, log_every=1, checkpoint_every=2)
    names = list(counted.names)
    batch = {"text": jax.numpy.asarray(decoder.ids())}
    compiled = trainer.compile(state, batch).lower(state, batch).compile()
    given = sum(leaf.nbytes for leaf in jax.tree.leaves((state, batch)) if hasattr(leaf, "nbytes"))
    return {
        "from_step": done,
        "compilations": {name: names.count(name) for name in sorted(set(names)) if "step" in name},
        "all_compilations": len(names),
        "largest_constant_bytes": largest_constant(compiled.as_text()),
        "argument_bytes_beyond_state_and_batch": compiled.memory_analysis().argument_size_in_bytes - given,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.half:
        print(json.dumps(half(options.half)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("run", "resume"):
            command = [sys.executable, __file__, "--half", folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            report("compile_count", part=name, config=decoder.CONFIG, **json.loads(output.splitlines()[-1]))


if __name__ == "__main__":
    main()
