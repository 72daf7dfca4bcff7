"""Muon: the momentum of a matrix, orthogonalized by Newton-Schulz iterations (Jordan et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from dew.training.optim.groups import path_name
from dew.training.optim.matrices import AxisNames, Sides, sides

type Coefficients = tuple[float, float, float]
type Numbers = Callable[[tuple[Any, ...], Any], Sides | None]
"""From a leaf's path and the leaf to its sides; None where Adam moves it."""

QUINTIC: Coefficients = (3.4445, -4.7750, 2.0315)
"""Coefficients of one iteration, `a X + (b A + c A^2) X` with `A = X X^T`."""

NO_NAMES: AxisNames = {}


class MuonState(NamedTuple):
    """The momentum of every matrix."""

    mu: Any


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
    axes: AxisNames = NO_NAMES,
) -> optax.GradientTransformation:
    """Orthogonalized momentum for the matrices, Adam for everything else, both before the learning rate.

    With gradient G: `M <- beta M + (1 - beta) G`, and the direction is the Newton-Schulz iteration of
    `beta M + (1 - beta) G` (of M without `nesterov`), scaled by its shape.

    A parameter whose axes are named is a matrix, a stack of them or neither as
    `dew.training.optim.matrices.sides` says: dense kernels, attention's projections and experts are, tables
    over a vocabulary are not. Without names, leaves of rank 2 are matrices, and so are rank-3 leaves that
    `stacks` names. Norms, biases, convolutions and what `adam_paths` names go to Adam.

    Args:
        beta: decay of the momentum.
        nesterov: look one step ahead.
        ns_steps: Newton-Schulz iterations.
        ns_coeffs: their three coefficients.
        consistent_rms: r, which scales a matrix's update by `r * sqrt(max(in, out))` so that one learning
            rate serves it and Adam (arXiv 2502.16982); None scales by `sqrt(max(1, out / in))`.
        adam_paths: globs of matrices that Adam moves nevertheless: embeddings and the head.
        stacks: globs of leaves `[n, in, out]` without axis names that are n matrices.
        b1: decay of Adam's first moment.
        b2: decay of Adam's second moment.
        eps: in both denominators.
        eps_root: under Adam's root.
        axes: the parameters' axis names by path.
    """
    numbers = _numbers(axes, tuple(adam_paths), tuple(stacks))

    def label(path: tuple[Any, ...], leaf: Any) -> str:
        return "adam" if numbers(path, leaf) is None else "muon"

    first, second, third = ns_coeffs

    def direction(x: jax.Array, axes: Sides) -> jax.Array:
        matrices, order = axes.stacked(whole_matrices(x, axes))
        orthogonal = newton_schulz(matrices, (first, second, third), ns_steps, eps)
        whole = whole_matrices(axes.restored(orthogonal, order, x.shape), axes)
        return _shape_factor(x.shape, axes, consistent_rms) * whole

    matrices = optax.chain(_momentum(beta, nesterov=nesterov), _per_matrix(numbers, direction))
    adam = optax.scale_by_adam(b1, b2, eps, eps_root)
    return optax.partition({"muon": matrices, "adam": adam}, lambda tree: jax.tree.map_with_path(label, tree))


def _numbers(axes: AxisNames, adam_paths: tuple[str, ...], stacks: tuple[str, ...]) -> Numbers:
    def numbers(path: tuple[Any, ...], leaf: Any) -> Sides | None:
        name = path_name(path)
        if any(fnmatchcase(name, pattern) for pattern in adam_paths):
            return None
        if name in axes:
            return sides(axes[name])
        stacked = leaf.ndim == 3 and any(fnmatchcase(name, pattern) for pattern in stacks)
        return Sides((leaf.ndim - 2,), (leaf.ndim - 1,)) if leaf.ndim == 2 or stacked else None

    return numbers


def _momentum(beta: float, *, nesterov: bool) -> optax.GradientTransformation:
    def towards(old: jax.Array, new: jax.Array) -> jax.Array:
        return beta * old + (1 - beta) * new

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        mu = jax.tree.map(towards, state.mu, updates)
        return (jax.tree.map(towards, mu, updates) if nesterov else mu), MuonState(mu)

    return optax.GradientTransformation(init, update)


def _per_matrix(
    numbers: Numbers, apply: Callable[[jax.Array, Sides], jax.Array]
) -> optax.GradientTransformation:
    def one(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        axes = numbers(path, leaf)
        assert axes is not None, "leaves without sides go to Adam"
        return apply(leaf, axes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map_with_path(one, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def newton_schulz(
    x: Float[Array, "... M N"], coefficients: Coefficients, steps: int, eps: float
) -> Float[Array, "... M N"]:
    """Return `x` with its singular values driven towards 1: `steps` iterations from unit Frobenius norm.

    Args:
        x: [..., M, N], a stack of matrices.
        coefficients: a, b, c of `a X + (b A + c A^2) X`, `A = X X^T`.
        steps: how many iterations.
        eps: added to the norm.
    """
    a, b, c = coefficients
    tall = x.shape[-2] > x.shape[-1]  # the iteration commutes with transposition; A is the smaller square
    x = x.mT if tall else x
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def whole_matrices(x: jax.Array, axes: Sides) -> jax.Array:
    """Return `x` with both sides of its matrices whole on every device, on the mesh in use.

    Every iteration multiplies the matrix by itself. Whole before them and after them, a sharded matrix costs
    one exchange however many there are; with the result left open, the compiler would carry the parameter's
    split back into each. Stacks stay split along their batch axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(kind != AxisType.Auto for kind in mesh.axis_types):
        return x
    inside = (*axes.inputs, *axes.outputs)
    spec = P(*(None if axis in inside else P.UNCONSTRAINED for axis in range(x.ndim)))
    return jax.lax.with_sharding_constraint(x, spec)


def _shape_factor(shape: tuple[int, ...], axes: Sides, consistent_rms: float | None) -> float:
    fan_in, fan_out = axes.sizes(shape)
    if consistent_rms is None:
        return math.sqrt(max(1.0, fan_out / fan_in))
    return consistent_rms * math.sqrt(max(fan_in, fan_out))
