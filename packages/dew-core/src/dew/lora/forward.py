"""The adapted forward pass: a dense layer that holds factors adds `scale * dropout(x) A B` to its output.

It works on any Linen module: while the pass is traced, the call of every `flax.linen.Dense` and
`dew.nn.dense.Dense` is intercepted, and a layer beside whose kernel factors lie computes with them unmerged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.lora.config import LORA_A, LORA_B, LoRA
from dew.lora.factors import unboxed_leaf
from dew.nn.dense import Dense

PRODUCTS = (nn.Dense, Dense)
"""Layers whose call is `x @ kernel` over the last axis, with a bias or without."""

STREAM = "dropout"
"""The random stream whose presence says that a pass trains with dropout."""


@dataclass
class Pass:
    """What one adapted forward pass did.

    Attributes:
        lora: the adapter.
        known: the identity of each A that the pass is given.
        called: those of them that a layer computed with.
        scopes: the path of each layer whose A is a slice or a copy, as scans and recomputation make them.
        drawn: whether any layer dropped inputs.
        inside: whether an adapted layer is being called, so that what it calls is left alone.
    """

    lora: LoRA
    known: frozenset[int] = frozenset()
    called: set[int] = field(default_factory=set[int])
    scopes: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    drawn: bool = False
    inside: bool = False

    def used(self, module: tuple[str, ...], a: Any) -> bool:
        """Whether the layer at `module`, whose factor is `a`, was called with its factors."""
        return id(a) in self.called or any(
            module[len(module) - len(scope) :] == scope for scope in self.scopes
        )


_active: ContextVar[Pass | None] = ContextVar("adapted_pass", default=None)


@contextmanager
def adapted_pass(lora: LoRA, known: frozenset[int] = frozenset()) -> Generator[Pass]:
    """Trace what happens inside with deltas on the dense layers that hold factors.

    A pass inside another is the same pass: no delta is added twice.

    Args:
        lora: the adapter.
        known: the identity of each A that the pass is given.
    """
    current = _active.get()
    if current is not None:
        yield current
        return
    record = Pass(lora, known)
    token = _active.set(record)
    try:
        with nn.intercept_methods(_interceptor(record)):
            yield record
    finally:
        _active.reset(token)


def _interceptor(record: Pass) -> Callable[..., Any]:
    def intercept(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module: nn.Module = context.module
        adapted = (
            not record.inside
            and context.method_name == "__call__"
            and isinstance(module, PRODUCTS)
            and module.has_variable("params", LORA_A)
        )
        if not adapted:
            return next_fun(*args, **kwargs)
        record.inside = True
        try:
            output = next_fun(*args, **kwargs)
        finally:
            record.inside = False
        return output + _delta(record, module, next(iter((*args, *kwargs.values()))), output.dtype)

    return intercept


def _delta(record: Pass, module: Any, x: jax.Array, dtype: Any) -> jax.Array:
    a, b = (module.get_variable("params", name) for name in (LORA_A, LORA_B))
    if id(a) in record.known:
        record.called.add(id(a))
    elif module.path:
        record.scopes.add(tuple(module.path))
    a, b = unboxed_leaf(a), unboxed_leaf(b)
    x = x.astype(dtype)
    if record.lora.dropout and module.has_rng(STREAM):
        record.drawn = True
        keep = 1 - record.lora.dropout
        kept = jax.random.bernoulli(module.make_rng(STREAM), keep, x.shape)
        x = jnp.where(kept, x / keep, jnp.zeros_like(x))
    inner = jnp.dot(x, a.astype(dtype), precision=module.precision)
    return jnp.dot(inner, b.astype(dtype), precision=module.precision) * jnp.asarray(record.lora.scale, dtype)
