"""One microbatch: the variables the loss reads, its statistics, and what an attempt hands to the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dew.objectives.base import Aux, Batch, Mean, Objective, Step, Variables, merge
from dew.training.scale import LossScale
from dew.training.state import Accumulation, TrainState
from dew.training.widths import wide_dtype, widened

type Collections = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """What one microbatch, added to the window so far, amounts to. All values are traced.

    Attributes:
        value: loss over the accepted prefix and this microbatch.
        active: whether those statistics have support.
        finite: whether the statistics and the gradient computed so far are finite.
        finite_loss: whether `value` is.
        aux: the loss's reports of this microbatch.
        gradient: the finalized gradient in the parameters' dtypes; called in the branch that commits.
        effects: observations summed over the window, or None.
        logits: the largest attention logit of every head over the window, or None where the loss reports
            none.
        accumulation: the window with this microbatch in it, or None for a window of one.
    """

    value: jax.Array
    active: jax.Array
    finite: jax.Array
    finite_loss: jax.Array
    aux: Aux[Any]
    gradient: Callable[[], Any]
    effects: Any
    logits: Any
    accumulation: Accumulation | None


def split(variables: Variables) -> tuple[Any, Collections]:
    """The `params` collection and the others."""
    return variables["params"], {name: tree for name, tree in variables.items() if name != "params"}


def joined(params: Any, rest: Collections) -> Collections:
    """The complete variables again."""
    return {**rest, "params": params}


def attempt_step(state: TrainState) -> Step:
    """The clock, key and average the loss reads: accepted microbatches, and randomness by attempts."""
    average = None if state.ema is None else state.averaged
    return Step(step=state.microstep, key=jax.random.fold_in(state.key, state.step), ema=average)


def observe(
    objective: Objective[Any, Any], params: Any, rest: Collections, batch: Batch, step: Step
) -> tuple[Any, Aux[Any]]:
    """The loss's statistics, a scalar as a mean of unit mass, and its reports.

    Raises:
        TypeError: the loss returns something else than `(statistics, Aux)`.
    """
    result: object = objective.loss(joined(params, rest), batch, step)
    match result:
        case (stats, Aux() as aux):
            pass
        case _:
            raise TypeError(
                f"{type(objective).__name__}.loss must return (statistics, Aux), not {type(result).__name__}"
            )
    if isinstance(stats, (jax.Array, float, int)):
        stats = Mean(stats, 1.0)
    return jax.tree.map(jnp.asarray, stats), aux


def shares_a_mean(objective: Objective[Any, Any], stats: Any) -> bool:
    """Whether the window's loss is one total over one mass, so that gradients of totals add."""
    return isinstance(stats, Mean) and objective.reduces_means_to_ratios


def loss_factor(scale: LossScale | None) -> jax.Array | float:
    """What the loss is multiplied by before it is differentiated."""
    return 1.0 if scale is None else scale.value


def wide_scalar(value: Any) -> jax.Array:
    """A scalar in working precision.

    Raises:
        TypeError: the value is no scalar.
    """
    array = jnp.asarray(value)
    if array.ndim:
        raise TypeError(f"a loss must reduce to a scalar, not to shape {array.shape}; sum over its axes")
    return array.astype(wide_dtype(array.dtype if jnp.issubdtype(array.dtype, jnp.inexact) else jnp.float32))


def pack(tree: Any) -> dict[str, Any]:
    """A tree's leaves in order, as a dict a checkpoint can hold; `None` has no leaves."""
    return {f"{index:03d}": leaf for index, leaf in enumerate(jax.tree.leaves(tree))}


def unpack(leaves: Mapping[str, Any], like: Any) -> Any:
    """The tree that `pack` flattened, in the structure of `like`."""
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in sorted(leaves)])


def added(total: Any, contribution: Any) -> Any:
    """Leaf-wise sum in working precision."""
    return jax.tree.map(jnp.add, total, widened(contribution))


def replaced(rest: Collections, replacements: Variables | None, *, where: str) -> Collections:
    """`rest` with the leaves of `replacements` in their initialised dtypes.

    Raises:
        ValueError: a replacement of `params`, or of a leaf the variables lack or hold in another shape.
    """
    if replacements is None:
        return rest
    if "params" in replacements:
        raise ValueError(
            f"{where} replaces the params collection, which the optimizer alone moves; leave it out"
        )
    unknown = sorted(set(replacements) - set(rest))
    if unknown:
        raise ValueError(f"{where} replaces the collection {unknown[0]!r}, which init did not create")
    if not jax.tree.leaves(replacements):
        return rest
    laid = merge(rest, replacements)

    def keep_dtype(path: tuple[Any, ...], old: jax.Array, new: Any) -> jax.Array:
        array = jnp.asarray(new)
        if array.shape != old.shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(f"{where} replaces {name!r} of shape {old.shape} by shape {array.shape}")
        return old if array is old else array.astype(old.dtype)

    laid = {**rest, **laid}
    return jax.tree_util.tree_map_with_path(keep_dtype, rest, laid)
