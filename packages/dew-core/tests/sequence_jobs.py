"""Attention over meshes with a sequence axis beside the formula, for `test_sequence_attention.py`.

Prints a JSON object: of each case and mesh the largest deviations of the result and of the three gradients,
and how many exchanges of each kind the compiled program has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.attention import allowed_keys, scaled_dot_product_attention
from dew.nn.attention.reference import reference_attention
from dew.testing.collectives import collectives, kinds
from dew.training import MeshSpec, build_mesh
from dew.training.mesh import batch_sharding

ROWS, WIDTH = 4, 8
MESHES = {
    "sequence 4": MeshSpec(sequence=4),
    "sequence 2 x fsdp 2 x tensor 2": MeshSpec(sequence=2, fsdp=2, tensor=2),
}


def documents(length: int) -> dict[str, jax.Array]:
    ids = jnp.stack([jnp.arange(length) * (row + 1) // 23 for row in range(ROWS)])
    return {"query_segment_ids": ids, "key_segment_ids": ids}


def coins(*shape: int) -> jax.Array:
    return jax.random.bernoulli(jax.random.key(8), 0.7, shape)


def out_of_order(length: int) -> dict[str, jax.Array]:
    where = jnp.stack([jax.random.permutation(jax.random.key(row), length) for row in range(ROWS)])
    return {"query_positions": where, "key_positions": where}


def continued(queries: int, keys: int) -> dict[str, jax.Array]:
    starts = 3 + jnp.arange(ROWS)[:, None]
    return {
        "query_positions": starts + jnp.arange(queries),
        "key_positions": jnp.broadcast_to(jnp.arange(keys), (ROWS, keys)),
    }


T = 96
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    # Options, then T, S, H and K.
    "everything": ({}, (T, T, 8, 8)),
    "causal": ({"causal": True}, (T, T, 8, 8)),
    "grouped heads": ({"causal": True}, (T, T, 16, 8)),
    "window": ({"window": 40}, (T, T, 8, 8)),
    "documents in a window": ({"window": 30, **documents(T)}, (T, T, 8, 8)),
    "mask of a head": ({"causal": True, "mask": coins(ROWS, 8, T, T)}, (T, T, 8, 8)),
    "mask of a key": ({"mask": coins(T)}, (T, T, 8, 8)),
    "softcap and sinks": ({"causal": True, "softcap": 2.0, "sinks": jnp.arange(8.0) - 3}, (T, T, 8, 8)),
    "out of order": ({"causal": True, **out_of_order(T)}, (T, T, 8, 8)),
    "one key head": ({"causal": True}, (T, T, 8, 1)),
    "one key head, window": ({"window": 40}, (T, T, 8, 1)),
    "one key head, documents": ({"causal": True, **documents(T)}, (T, T, 8, 1)),
    "one key head, masks": ({"mask": coins(ROWS, 8, T, T)}, (T, T, 8, 1)),
    "two key heads, sinks": (
        {"window": 9, "sinks": jnp.arange(8.0) - 3, "mask": coins(1, 1, T, T)},
        (T, T, 8, 2),
    ),
    "length 30": ({"causal": True, "mask": coins(30, 30)}, (30, 30, 6, 2)),
    "across": ({"mask": coins(ROWS, 1, 1, 7)}, (16, 7, 8, 8)),
    "a prompt": ({"causal": True, **continued(8, 20)}, (8, 20, 8, 8)),
    "one query": ({"causal": True, **continued(1, 20)}, (1, 20, 8, 8)),
    "queries that see nothing": ({"mask": jnp.arange(T)[:, None] % 3 > 0}, (T, T, 8, 8)),
}


def operands(queries: int, keys: int, heads: int, key_heads: int) -> list[jax.Array]:
    shapes = [(queries, heads), (keys, key_heads), (keys, key_heads), (queries, heads)]
    drawn = zip(jax.random.split(jax.random.key(3), 4), shapes, strict=True)
    return [jax.random.normal(key, (ROWS, *shape, WIDTH)) for key, shape in drawn]


def formula(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    softcap, sinks = options.pop("softcap", None), options.pop("sinks", None)
    allowed = allowed_keys(query.shape[1], key.shape[1], **options)
    return reference_attention(
        query, key, value, allowed=allowed, scale=WIDTH**-0.5, softcap=softcap, sinks=sinks
    )


def with_gradients(attend: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
    def results(query: jax.Array, key: jax.Array, value: jax.Array, cotangent: jax.Array) -> list[jax.Array]:
        mixed, pull = jax.vjp(attend, query, key, value)
        return [mixed, *pull(cotangent)]

    return results


def found(mesh: Any, options: dict[str, Any], sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    inputs = operands(*sizes)
    right = jax.jit(with_gradients(lambda *x: formula(*x, **options)))(*inputs)
    with jax.set_mesh(mesh):
        placed = jax.device_put(inputs, batch_sharding(mesh))
        split = jax.jit(with_gradients(lambda *x: scaled_dot_product_attention(*x, **options)))
        compiled = split.lower(*placed).compile()
        got = compiled(*placed)
    gaps = [float(np.abs(a - b).max()) for a, b in zip(*jax.device_get((right, got)), strict=True)]
    return {"gaps": gaps, "exchanges": dict(kinds(collectives(compiled.as_text())))}


WITH_TENSOR = (
    "grouped heads",
    "mask of a head",
    "one key head",
    "two key heads, sinks",
    "softcap and sinks",
    "length 30",
)
"""The cases in which a tensor axis makes a difference."""


def main() -> None:
    with jax.default_matmul_precision("highest"):
        outcomes = {
            f"{case}, {name}": found(build_mesh(spec), *CASES[case])
            for name, spec in MESHES.items()
            for case in (CASES if spec.tensor == 1 else WITH_TENSOR)
        }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
