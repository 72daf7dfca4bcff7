"""A small use of a component as a pure function of arrays, and what every such function keeps.

`function(held, rows)`: what is held is the same for all rows (parameters), rows have a leading row axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.testing.objectives import assert_close
from dew.training.config import Layout, MeshSpec
from dew.training.layout import tree_shardings, unboxed
from dew.training.mesh import batch_sharding, build_mesh

type Function = Callable[[Any, Any], Any]
"""From what is held and the rows to a tree of arrays."""

TOLERANCE = 1e-5
"""Relative difference, as a norm over the tree, that float32 sums in another order may have."""
SPREAD = Layout(min_shard=64, tolerance=1.0)
"""A layout that splits even the parameters of a tiny model."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A component in use.

    Attributes:
        function: pure; see the module.
        held: a tree of arrays, boxed with logical axis names where a model declares them.
        rows: the tree of the first so many rows.
        rowwise: every array of the result has a row for each row given.
        dtype: of every floating array of the result.
    """

    function: Function
    rows: Callable[[int], Any]
    held: Any = None
    rowwise: bool = True
    dtype: Any = np.float32


def check_compiled(trial: Trial, again: Trial) -> None:
    """One compilation serves all values of a shape; the result is as tracing foretells it, a row for each row
    and one float type, and the same each time.

    Args:
        trial: the use under test.
        again: the same use of a component built anew; what is static of it must be equal, not just alike.
    """
    traced: list[None] = []

    def counted(held: Any, rows: Any) -> Any:
        traced.append(None)
        return trial.function(held, rows)

    compiled = jax.jit(counted)
    held, rows = unboxed(trial.held), trial.rows(4)
    value = compiled(held, rows)
    compiled(unboxed(again.held), jax.tree.map(lambda leaf: leaf[::-1], again.rows(4)))
    assert len(traced) == 1, f"two calls with the same shapes were traced {len(traced)} times"
    assert_close(floats_of(compiled(held, rows)), floats_of(value), 0.0)
    foretold = jax.eval_shape(trial.function, held, rows)
    assert described(value) == described(foretold)
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        where = f"result{jax.tree_util.keystr(path)}"
        if trial.rowwise:
            assert leaf.ndim and leaf.shape[0] == 4, f"{where} of shape {leaf.shape} has no row for each of 4"
        if is_float(leaf):
            assert leaf.dtype == trial.dtype, f"{where} is {leaf.dtype}, not {np.dtype(trial.dtype)}"


def check_finite(trial: Trial) -> None:
    """Values are finite, and so is the gradient of their mean square by everything that is a float."""
    arguments = (unboxed(trial.held), trial.rows(2))
    leaves, structure = jax.tree.flatten(arguments)
    floats = [index for index, leaf in enumerate(leaves) if is_float(leaf)]

    def mean_square(values: list[Any]) -> jax.Array:
        filled = list(leaves)
        for index, value in zip(floats, values, strict=True):
            filled[index] = value
        result = trial.function(*jax.tree.unflatten(structure, filled))
        parts = [jnp.mean(jnp.square(leaf)) for leaf in jax.tree.leaves(result) if is_float(leaf)]
        return jnp.asarray(sum(parts), jnp.float32)

    value, gradients = jax.jit(jax.value_and_grad(mean_square))([leaves[index] for index in floats])
    assert jnp.isfinite(value), "the result is not finite"
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(arguments)]
    for index, gradient in zip(floats, gradients, strict=True):
        name = jax.tree_util.keystr(paths[index])
        assert jnp.isfinite(gradient).all(), f"the gradient by argument {name} is not finite"


def check_sharded(trial: Trial) -> None:
    """Over every device of this process, rows and held arrays split, the result is that of one device.

    Raises:
        AssertionError: they differ, or this process has one device alone.
    """
    devices = jax.device_count()
    assert devices > 1, "this process has one device; set --xla_force_host_platform_device_count"
    held, rows = unboxed(trial.held), trial.rows(devices)
    with jax.default_device(jax.devices()[0]):
        whole = jax.jit(trial.function)(held, rows)
    mesh = build_mesh(MeshSpec(fsdp=2))
    placed = jax.device_put(held, tree_shardings(SPREAD, mesh, trial.held))
    spread = jax.device_put(rows, batch_sharding(mesh))
    with jax.set_mesh(mesh):
        result = jax.jit(trial.function)(placed, spread)
    assert_close(floats_of(jax.device_get(whole)), floats_of(jax.device_get(result)), TOLERANCE)


def described(tree: Any) -> Any:
    """Shape and dtype of every array."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def is_float(leaf: Any) -> bool:
    """Whether an array holds floating numbers."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def floats_of(tree: Any) -> list[Any]:
    """Every array as float32; a result's integers and booleans count too."""
    return [jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(tree)]
