"""How many programs 20 calls of `generate` with prompts of 20 lengths compile, and 20 further ones.

A prompt's slots and a budget's are rounded up to buckets, so the programs are bounded by the buckets met.

    uv run python benchmarks/decode_compilations.py
"""

from __future__ import annotations

import logging
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from compile_count import Compilations
from results import report, spread

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.sampling import Sampling, generate
from dew.sampling.text.prompts import bucket

CALLS, LONGEST, NEW = 20, 480, 32
SIZES = {"vocab_size": 256, "hidden_size": 128, "num_layers": 2, "num_heads": 4, "max_seq_len": 1024}


def main() -> None:
    model = CausalTransformer(**SIZES)
    variables = unboxed(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    draw = np.random.default_rng(0)
    lengths = [int(each) for each in draw.permutation(LONGEST)[: 2 * CALLS] + 1]
    counted = Compilations()
    logging.getLogger("jax").addHandler(counted)
    jax.config.update("jax_log_compiles", True)
    for name, part in (("first", lengths[:CALLS]), ("further", lengths[CALLS:])):
        counted.names.clear()
        seconds = []
        for seed, length in enumerate(part):
            start = time.perf_counter()
            prompt = draw.integers(0, model.vocab_size, (1, length)).astype(np.int32)
            sampling = Sampling(temperature=1.0)
            generate(model, variables, prompt, NEW, seed=seed, sampling=sampling).host()
            seconds.append(time.perf_counter() - start)
        report(
            "decode_compilations",
            config={**SIZES, "new": NEW, "calls": CALLS, "prompt_lengths": part},
            calls=name,
            buckets=sorted({bucket(length, model.max_seq_len) for length in part}),
            compiled=len(counted.names),
            programs=dict(Counter(counted.names).most_common()),
            call=spread(seconds),
        )


if __name__ == "__main__":
    main()
