"""Where a decoding step's time goes, and what bounds its rate over transformers.generate.

A step is measured whole and in parts that run by themselves: the products of its rows with every weight, the
draw with both likelihoods, and one pass over the weights' bytes, which no step of few rows can do without.
The rest is attention over the cache, norms, rotations and the loop. torch runs its whole step and the same
products.

    uv run python benchmarks/decode_profile.py --torch-python PYTHON [--models small mid] [--rounds 5]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from decode_rate import NEW, POLICIES, PROMPT, Decoder, arguments, cases
from results import report
from worker import Worker

from dew.sampling.text.components import Transforms
from dew.sampling.text.loop import choose, pick, weighed
from dew.sampling.text.operations import prompt_state

REPEATS = 20
"""Calls of a part in one turn."""


def weights(decoder: Decoder) -> list[jax.Array]:
    """Every weight that a step multiplies its rows with, the head among them."""
    kernels = jax.tree.leaves_with_path(decoder.variables)
    return [leaf for path, leaf in kernels if leaf.ndim == 2 and "embed" not in jax.tree_util.keystr(path)]


def milliseconds(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / times * 1e3


def parts(decoder: Decoder, rows: int) -> dict[str, Callable[[], Any]]:
    """The parts of a step, compiled."""
    kernels = weights(decoder)
    inputs = {width: jnp.ones((rows, width)) for width in {kernel.shape[0] for kernel in kernels}}
    logits = jax.random.normal(jax.random.key(0), (rows, decoder.model.vocab_size))
    keys = jax.random.split(jax.random.key(1), rows)
    counts = np.full(rows, PROMPT)
    state = prompt_state(
        decoder.prompts[:rows], counts, keys, np.ones(rows, bool), np.int32(0), np.int32(NEW), slots=NEW
    )
    chain = Transforms(POLICIES["sampled"].transforms())
    multiply = jax.jit(lambda kernels: [inputs[kernel.shape[0]] @ kernel for kernel in kernels])
    read = jax.jit(lambda kernels: [jnp.sum(kernel) for kernel in kernels])

    @jax.jit
    def draw(keys: jax.Array, logits: jax.Array) -> Any:
        law = weighed(state, logits, chain)
        token = choose(keys, law.log_probs, certain=False)
        return token, pick(law.log_probs, token), pick(law.raw, token), law.fault

    return {
        "products": lambda: multiply(kernels),
        "draw": lambda: draw(keys, logits),
        "one_read_of_the_weights": lambda: read(kernels),
    }


def profiled(decoder: Decoder, worker: Worker, rows: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, milliseconds of a step."""
    policy = POLICIES["sampled"]
    own = parts(decoder, rows)
    calls = {name: lambda call=call: milliseconds(call, REPEATS) for name, call in own.items()}
    calls["step"] = lambda: decoder.seconds(policy, rows) * 1e3 / NEW
    calls["torch_step"] = lambda: float(worker.ask(f"sampled {rows}")) * 1e3 / NEW
    calls["torch_products"] = lambda: float(worker.ask(f"products {rows}")) * 1e3
    for call in calls.values():
        call()
    turns = [{name: call() for name, call in calls.items()} for _ in range(rounds)]
    taken = {name: statistics.median(turn[name] for turn in turns) for name in calls}
    rest = taken["step"] - taken["products"] - taken["draw"]
    return {name: round(value, 3) for name, value in {**taken, "rest": rest}.items()}


def main() -> None:
    options = arguments(__doc__, rounds=5)
    for decoder, worker, _, rows, told in cases(options):
        found = profiled(decoder, worker, rows, options.rounds)
        bound = found["torch_step"] / (found["torch_products"] + found["draw"])
        report(
            "decode_profile",
            **told,
            weight_bytes=sum(kernel.nbytes for kernel in weights(decoder)),
            step_ms=found,
            ratio=round(found["torch_step"] / found["step"], 3),
            ratio_if_products_were_torchs_and_the_rest_free=round(bound, 3),
        )


if __name__ == "__main__":
    main()
