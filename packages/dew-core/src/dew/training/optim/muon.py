"""Muon: the momentum of a matrix, orthogonalized by Newton-Schulz iterations (Jordan et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from dew.training.optim.groups import path_name

type Coefficients = tuple[float, float, float]

QUINTIC: Coefficients = (3.4445, -4.7750, 2.0315)
"""Coefficients of one iteration, `a X + (b A + c A^2) X` with `A = X X^T`."""


def muon_directions(
    *,
    beta: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    ns_coeffs: Sequence[float] = QUINTIC,
    consistent_rms: float | None = 0.2,
    adam_paths: Sequence[str] = ("*embed*", "*lm_head*"),
    stacks: Sequence[str] = ("*experts*",),
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
) -> optax.GradientTransformation:
    """Orthogonalized momentum for the matrices, Adam for everything else, both before the learning rate.

    Args:
        beta: decay of the momentum.
        nesterov: look one step ahead.
        ns_steps: Newton-Schulz iterations.
        ns_coeffs: their three coefficients.
        consistent_rms: r, which scales a matrix's update by `r * sqrt(max(in, out))` so that one learning
            rate serves it and Adam (arXiv 2502.16982); None scales by `sqrt(max(1, out / in))`.
        adam_paths: globs of matrices that Adam moves: embeddings and the head.
        stacks: globs of rank-3 leaves `[n, in, out]` that are n matrices. Other leaves of rank 3 and more,
            and all vectors, go to Adam.
        b1: decay of Adam's first moment.
        b2: decay of Adam's second moment.
        eps: in both denominators.
        eps_root: under Adam's root.
    """

    def numbers(path: tuple[Any, ...], leaf: Any) -> MuonDimensionNumbers | None:
        name = path_name(path)
        if any(fnmatchcase(name, pattern) for pattern in adam_paths):
            return None
        stacked = leaf.ndim == 3 and any(fnmatchcase(name, pattern) for pattern in stacks)
        return MuonDimensionNumbers(-2, -1) if leaf.ndim == 2 or stacked else None

    def dimensions(tree: Any) -> Any:
        return jax.tree.map_with_path(numbers, tree)

    def labels(tree: Any) -> Any:
        def label(path: tuple[Any, ...], leaf: Any) -> str:
            return "adam" if numbers(path, leaf) is None else "muon"

        return jax.tree.map_with_path(label, tree)

    first, second, third = ns_coeffs
    matrices = optax.chain(
        scale_by_muon(
            (first, second, third),
            ns_steps,
            beta,
            eps,
            nesterov=nesterov,
            weight_dimension_numbers=dimensions,
        ),
        _scale_by_shape(consistent_rms),
    )
    return optax.partition({"muon": matrices, "adam": optax.scale_by_adam(b1, b2, eps, eps_root)}, labels)


def _scale_by_shape(consistent_rms: float | None) -> optax.GradientTransformation:
    """Scale the update of each `[..., in, out]` leaf by a factor of its shape; see `muon_directions`."""

    def scaled(leaf: jax.Array) -> jax.Array:
        fan_in, fan_out = leaf.shape[-2:]
        if consistent_rms is None:
            return math.sqrt(max(1.0, fan_out / fan_in)) * leaf
        return consistent_rms * math.sqrt(max(fan_in, fan_out)) * leaf

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(scaled, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)
