"""How much sooner 64 ragged requests are done by continuous batching than in static batches of as many rows.

Prompts and budgets are log-uniform from 8 to 256 tokens, drawn once. The server takes the requests as they
come. Static batches are Dew's own `generate` over 8 requests at a time, each row with its budget, in order
of arrival; a third way sorts the requests by budget first, which needs all of them beforehand. The ways take
turns, and their draws are compared.

    uv run python benchmarks/serve.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from results import report, spread

from dew.inference import Server, TextGeneration
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling
from dew.sampling.decoding import MaxNewTokens
from dew.training.host_memory import keep_freed_memory

REQUESTS, SLOTS, SHORT, LONG = 64, 8, 8, 256
SIZES = {"hidden_size": 256, "num_layers": 4, "num_heads": 8, "intermediate_size": 1024}
VOCAB = 4096
KEY = 0


@dataclass(frozen=True)
class Ragged:
    """One request: its prompt, its budget, and its key."""

    prompt: list[int]
    budget: int
    key: jax.Array


def task() -> TextGeneration:
    """A decoder at its initial weights, sampling with a temperature."""
    model = CausalTransformer(vocab_size=VOCAB, max_seq_len=2 * LONG, **SIZES)
    variables = nn.unbox(model.init(jax.random.key(KEY), jnp.zeros((1, 4), jnp.int32)))
    return TextGeneration(model, variables, sampling=Sampling(temperature=0.8))


def requests() -> list[Ragged]:
    """The 64 requests, in the order of their arrival."""
    generator = np.random.default_rng(KEY)
    lengths = np.exp(generator.uniform(np.log(SHORT), np.log(LONG), (REQUESTS, 2))).round().astype(int)
    keys = jax.random.split(jax.random.key(KEY), REQUESTS)
    return [
        Ragged(generator.integers(0, VOCAB, int(length)).tolist(), int(budget), keys[row : row + 1])
        for row, (length, budget) in enumerate(lengths)
    ]


def serve(server: Server, asked: Sequence[Ragged]) -> list[list[int]]:
    """The response ids of every request, by the server."""
    tickets = [server.submit(each.prompt, each.budget, key=each.key) for each in asked]
    server.run()
    return [ticket.result().responses()[0] for ticket in tickets]


def batches(task: TextGeneration, asked: Sequence[Ragged]) -> list[list[int]]:
    """The response ids of every request, in static batches of `SLOTS`."""
    drawn: list[list[int]] = []
    for start in range(0, len(asked), SLOTS):
        part = asked[start : start + SLOTS]
        budgets = np.asarray([each.budget for each in part], np.int32)
        rows = task(
            [each.prompt for each in part],
            int(budgets.max()),
            key=jnp.concatenate([each.key for each in part]),
            stopping=(MaxNewTokens(jnp.asarray(budgets)),),
        )
        drawn += rows.responses()
    return drawn


def sorted_batches(task: TextGeneration, asked: Sequence[Ragged]) -> list[list[int]]:
    """`batches` over the requests by budget, the responses in the order of arrival."""
    order = sorted(range(len(asked)), key=lambda row: asked[row].budget)
    drawn = batches(task, [asked[row] for row in order])
    return [drawn[order.index(row)] for row in range(len(asked))]


def timed(way: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Seconds and result of one way."""
    started = time.perf_counter()
    drawn = way()
    return time.perf_counter() - started, drawn


def main() -> None:
    """Run the ways in turns and report their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    keep_freed_memory()
    text, asked = task(), requests()
    server = Server.from_task(text, slots=SLOTS, capacity=2 * LONG)
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "server": lambda: serve(server, asked),
        "static": lambda: batches(text, asked),
        "static_sorted": lambda: sorted_batches(text, asked),
    }
    drawn = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(timed(way)[0])
    tokens = sum(each.budget for each in asked)
    ratios = {
        name: [static / served for static, served in zip(seconds[name], seconds["server"], strict=True)]
        for name in ("static", "static_sorted")
    }
    report(
        "serve/ragged",
        config={"requests": REQUESTS, "slots": SLOTS, "lengths": [SHORT, LONG], "vocab": VOCAB, **SIZES},
        drawn_tokens=tokens,
        tokens_per_s=round(tokens / statistics.median(seconds["server"])),
        **{name: spread(each) for name, each in seconds.items()},
        over_server={
            name: {
                "median": round(statistics.median(each), 3),
                "range": [round(min(each), 3), round(max(each), 3)],
            }
            for name, each in ratios.items()
        },
        requests_drawn_differently=sum(
            one != other for one, other in zip(drawn["server"], drawn["static"], strict=True)
        ),
    )


if __name__ == "__main__":
    main()
