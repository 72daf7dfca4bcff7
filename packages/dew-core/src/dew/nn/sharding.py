"""Logical axis names, declared beside the module that owns a parameter.

A name says what a dimension is (`embed`, `heads`, `mlp`, `vocab`); one table in `dew.training.Layout` says
which mesh axis splits it. A model never spells a mesh axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import linen as nn


def named_axes(initializer: Callable[..., Any], *names: str | None) -> Callable[..., Any]:
    """Return `initializer` whose result carries one logical axis name a dimension.

    The parameter comes boxed as `nn.LogicallyPartitioned` out of `init`; modules read it unboxed.
    """
    return nn.with_logical_partitioning(initializer, names)


def unboxed(variables: Any) -> Any:
    """Return `variables` without axis names; a tree of plain arrays is returned as it is."""
    return nn.meta.unbox(variables)


def boxed_like(template: Any, values: Any) -> Any:
    """Return `values` with the axis names of `template`, a tree of the same structure as `init` yields it."""
    return nn.meta.replace_boxed(template, values)
