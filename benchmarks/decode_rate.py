"""Decoding rate against transformers.generate in torch: equal weights, prompts, float32 and cores, in turns.

Dew decodes in this process, torch in one of its own that answers when asked. Greedy calls draw the same
tokens, which is checked; sampled ones report the log probability of every token before and after the filters.

    uv run python benchmarks/decode_rate.py --torch-python PYTHON [--rounds 7] [--models small mid]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from results import report, spread
from worker import Worker

from dew.interop import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.sampling import Sampling, generate
from dew.training.host_memory import keep_freed_memory

PROMPT, NEW = 32, 128
TEMPERATURE, TOP_K = 0.8, 50
POLICIES = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=TEMPERATURE, top_k=TOP_K),
}
SIZES = {
    "small": {"vocab_size": 4096, "hidden_size": 256, "num_layers": 4, "num_heads": 8},
    "mid": {"vocab_size": 8192, "hidden_size": 512, "num_layers": 8, "num_heads": 8},
}
INNER = {"small": 704, "mid": 1408}
GOALS = {("small", 1): 4.0, ("small", 8): 2.0, ("mid", 1): 1.5, ("mid", 8): 1.2}
FLOOR = 1e-4
"""Ten times the difference of float32 logits between the two: a decision closer than this may fall either
way."""


class Decoder:
    """Dew's side: a model of `SIZES`, its weights and prompts, written to `folder` for the other."""

    def __init__(self, name: str, folder: str) -> None:
        self.model = CausalTransformer(**SIZES[name], intermediate_size=INNER[name], max_seq_len=PROMPT + NEW)
        drawn = unboxed(self.model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
        # Wide enough that few decisions are close.
        self.variables = jax.tree.map(lambda leaf: 2.0 * leaf if leaf.ndim > 1 else leaf, drawn)
        vocab = self.model.vocab_size
        self.prompts = np.random.default_rng(1).integers(0, vocab, (8, PROMPT)).astype(np.int32)
        save_pretrained_decoder(self.model, self.variables, f"{folder}/model")
        np.save(f"{folder}/prompts.npy", self.prompts)
        with open(f"{folder}/request.json", "w") as sink:
            json.dump({"new_tokens": NEW, "temperature": TEMPERATURE, "top_k": TOP_K}, sink)

    def draw(self, policy: Sampling, rows: int, seed: int = 0) -> np.ndarray:
        """The drawn tokens on the host; both likelihoods stand in the record too."""
        record = generate(
            self.model, self.variables, self.prompts[:rows], NEW, seed=seed, sampling=policy
        ).host()
        return record.tokens[:, PROMPT:]

    def seconds(self, policy: Sampling, rows: int) -> float:
        start = time.perf_counter()
        self.draw(policy, rows)
        return time.perf_counter() - start


def agreement(decoder: Decoder, worker: Worker, rows: int) -> dict[str, Any]:
    """Whether greedy rows are equal, or part where torch's own decision was closer than `FLOOR`."""
    theirs = json.loads(worker.ask(f"check {rows}"))
    ours = decoder.draw(POLICIES["greedy"], rows)
    parted = ours != np.asarray(theirs["tokens"])
    at = [int(np.argmax(row)) for row in parted if row.any()]
    margins = [
        theirs["margins"][row][place] for row, place in zip(np.flatnonzero(parted.any(1)), at, strict=True)
    ]
    if any(margin > FLOOR for margin in margins):
        sys.exit(f"rows part at {at} with margins {margins}, above {FLOOR}: not the same model")
    return {"rows_equal": int(rows - len(at)), "parted_at": at, "margins": margins}


def compare(decoder: Decoder, worker: Worker, what: str, rows: int, rounds: int) -> dict[str, Any]:
    policy = POLICIES[what]
    decoder.seconds(policy, rows)
    worker.ask(f"{what} {rows}")
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(decoder.seconds(policy, rows))
        theirs.append(float(worker.ask(f"{what} {rows}")))
    ratios = [torch / dew for dew, torch in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "dew": spread(ours),
        "torch": spread(theirs),
        "dew_tokens_per_s": round(rows * NEW / statistics.median(ours), 1),
        "torch_tokens_per_s": round(rows * NEW / statistics.median(theirs), 1),
        "rate_ratio": {
            "median": round(median, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
        },
    }


class Case(NamedTuple):
    """One model with so many rows, on both sides, and what a result says of it."""

    decoder: Decoder
    worker: Worker
    model: str
    rows: int
    told: dict[str, Any]


def arguments(description: str, *, rounds: int) -> argparse.Namespace:
    """The command line of a decoding benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    return parser.parse_args()


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """The models and rows that `options` ask for, one after another."""
    keep_freed_memory()
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            decoder = Decoder(name, folder)
            worker = Worker(options.torch_python, "torch_decode.py", folder)
            versions = worker.line()
            for rows in options.rows:
                config = {**SIZES[name], "inner": INNER[name], "rows": rows, "prompt": PROMPT, "new": NEW}
                told = {"config": config, "model": name, "torch_versions": versions}
                yield Case(decoder, worker, name, rows, told)
            worker.close()


def main() -> None:
    options = arguments(__doc__, rounds=7)
    for decoder, worker, name, rows, told in cases(options):
        same = agreement(decoder, worker, rows)
        for what in POLICIES:
            report(
                "decode_rate",
                **told,
                kind=what,
                against="transformers.generate",
                goal=GOALS.get((name, rows)) if what == "greedy" else 2.0,
                **(same if what == "greedy" else {}),
                **compare(decoder, worker, what, rows, options.rounds),
            )


if __name__ == "__main__":
    main()
