"""The TPU kernels, interpreted, on a mesh of eight devices beside one; for `test_pallas_attention.py`.

Prints a JSON object of largest deviations from the formula.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu

from dew.nn.attention import allowed_keys
from dew.nn.attention.pallas import flash_attention, splash_attention
from dew.nn.attention.reference import reference_attention
from dew.training import MeshSpec, build_mesh

ROWS, LENGTH, WIDTH = 4, 128, 8
draw = jax.random.split(jax.random.key(0), 3)
given = {
    "query": jax.random.normal(draw[0], (ROWS, LENGTH, 4, WIDTH)),
    "key": jax.random.normal(draw[1], (ROWS, LENGTH, 2, WIDTH)),
    "value": jax.random.normal(draw[2], (ROWS, LENGTH, 2, WIDTH)),
}
ids = jnp.stack([jnp.arange(LENGTH) * (row + 1) // 60 for row in range(ROWS)])
documents = {"query_segment_ids": ids, "key_segment_ids": ids}
sinks = jnp.asarray([0.5, -1.0, 2.0, 4.0])
rules = {"causal": True, "window": None, "scale": 0.3, "softcap": None}
allowed = allowed_keys(LENGTH, LENGTH, causal=True, **documents)


def deviation(found: jax.Array, sinks: jax.Array | None) -> float:
    right = reference_attention(*given.values(), allowed=allowed, scale=0.3, sinks=sinks, precision="highest")
    return float(jnp.abs(found - right).max())


with jax.set_mesh(build_mesh(MeshSpec(fsdp=2, tensor=2))):
    splash = jax.jit(lambda held: splash_attention(held, interpret=True, **rules))
    found = {"splash": deviation(splash({**given, **documents, "sinks": sinks}), sinks)}
    with tpu.force_tpu_interpret_mode():
        flash = jax.jit(lambda held: flash_attention(held, allowed=allowed, scale=0.3))
        found["flash"] = deviation(flash(given), None)
print(json.dumps(found))
