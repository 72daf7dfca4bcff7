"""Where every part of a `TrainState` lives, and its creation directly into those places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dew.objectives.base import EMASpec, Initializer, select
from dew.training.config import Layout
from dew.training.ema import initial_average
from dew.training.layout import tree_shardings, unboxed
from dew.training.mesh import BATCH_AXES, replicated, row_shards
from dew.training.scale import initial_scale
from dew.training.state import Accumulation, TrainState

INIT_STREAM = 0xFFFFFFFD
"""Folded into the root key for initialisation; attempts count up from 0 and never reach it."""

type Names = tuple[str, ...]


def create_state(
    initializer: Initializer,
    key: jax.Array,
    optimizer: optax.GradientTransformation,
    *,
    ema: EMASpec | None,
    dynamic_scale: bool,
    window_size: int,
) -> TrainState:
    """The state before the first attempt, parameters still boxed with their logical names. Pure.

    Raises:
        ValueError: the initialised variables have no `params` collection.
    """
    boxed = initializer(jax.random.fold_in(key, INIT_STREAM))
    if "params" not in boxed:
        raise ValueError(
            f"init returned the collections {sorted(boxed)} without 'params', so nothing can be trained"
        )
    variables = unboxed(boxed)

    def zero() -> jax.Array:
        return jnp.asarray(0, jnp.int32)

    return TrainState(
        step=zero(),
        microstep=zero(),
        updates=zero(),
        params=boxed,
        opt_state=optimizer.init(variables["params"]),
        ema=None if ema is None else initial_average(variables, ema),
        key=key,
        scale=initial_scale() if dynamic_scale else None,
        window_size=jnp.asarray(window_size, jnp.int32),
    )


def state_shardings(boxed: TrainState, mesh: Mesh, layout: Layout) -> TrainState:
    """The placement of every leaf of a state without an accumulation.

    Averages lie where their parameters lie. So does every leaf of the optimizer's state whose path ends in a
    parameter's path and whose shape is that parameter's (moments); the rest is replicated.
    """
    variables = unboxed(boxed.params)
    placed = tree_shardings(layout, mesh, boxed.params)
    params = {
        names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree.leaves_with_path(variables["params"]), jax.tree.leaves(placed["params"]), strict=True
        )
    }
    whole = replicated(mesh)

    def moment(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        shape, sharding = _longest_suffix(names(path), params) or (None, whole)
        return sharding if shape == leaf.shape else whole

    rest = jax.tree.map(lambda _: whole, replace(boxed, params=None, opt_state=None, ema=None))
    averaged = None if boxed.ema is None else select(placed, lambda path: holds(boxed.ema, path))
    return replace(
        rest,
        params=placed,
        opt_state=jax.tree_util.tree_map_with_path(moment, boxed.opt_state),
        ema=averaged,
    )


def accumulation_shardings(accumulation: Accumulation, shardings: TrainState, mesh: Mesh) -> Any:
    """The placement of a partial window: gradients like the parameters, retained rows like a batch."""
    params: dict[Names, NamedSharding] = {
        names(path): leaf for path, leaf in jax.tree.leaves_with_path(shardings.params["params"])
    }
    rows = NamedSharding(mesh, P(None, BATCH_AXES))

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = names(path)
        if name[0] == "gradient":
            return params[name[1:]]
        if name[:2] == ("records", "batch") and len(leaf.shape) > 1 and leaf.shape[1] % row_shards(mesh) == 0:
            return rows
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, accumulation)


def names(path: tuple[Any, ...]) -> Names:
    """A key path as plain strings."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def described(state: Any, shardings: Any) -> Any:
    """Shape, dtype and placement of every leaf: what a checkpoint is restored into."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        shardings,
    )


def _longest_suffix(
    path: Names, params: dict[Names, tuple[Any, NamedSharding]]
) -> tuple[Any, NamedSharding] | None:
    for start in range(len(path)):
        if path[start:] in params:
            return params[path[start:]]
    return None


def holds(tree: Any, path: Names) -> bool:
    """Whether nested dicts have an entry at `path`."""
    for name in path:
        if name not in tree:
            return False
        tree = tree[name]
    return True
