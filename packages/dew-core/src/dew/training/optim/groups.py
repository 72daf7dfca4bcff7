"""Learning rates and weight decays by parameter path."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import optax

from dew.training.optim.config import ParamGroup


def path_name(path: tuple[Any, ...]) -> str:
    """The full path of a leaf, `params/...`, whether the tree is the collection or the variables holding
    it."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return name if name.startswith("params/") else f"params/{name}"


def group_of(groups: Sequence[ParamGroup], path: tuple[Any, ...]) -> ParamGroup | None:
    """The first group whose pattern matches the leaf at `path`."""
    name = path_name(path)
    return next((group for group in groups if fnmatchcase(name, group.pattern)), None)


def check_patterns(groups: Sequence[ParamGroup], params: Any) -> None:
    """Refuse a pattern that matches no leaf.

    Raises:
        ValueError: the pattern, with the closest path.
    """
    names = [path_name(path) for path, _ in jax.tree.leaves_with_path(params)]
    for group in groups:
        if not any(fnmatchcase(name, group.pattern) for name in names):
            near = difflib.get_close_matches(group.pattern, names, n=1, cutoff=0.0)
            raise ValueError(
                f"param_groups.pattern={group.pattern!r} matches none of the {len(names)} parameters; "
                f"the closest is {near[0] if near else 'none'}"
            )


def per_leaf(apply: Callable[[tuple[Any, ...], Any, Any], Any]) -> optax.GradientTransformation:
    """The stateless transformation that maps `apply(path, update, parameter)` over the leaves."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("this optimizer reads the parameters; pass params to update")
        return jax.tree.map_with_path(apply, updates, params), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def decay_weights(groups: Sequence[ParamGroup], default: float) -> optax.GradientTransformation:
    """Add `decay * parameter` to each update, with the decay of the leaf's group or `default`."""

    def apply(path: tuple[Any, ...], update: Any, parameter: Any) -> Any:
        group = group_of(groups, path)
        decay = default if group is None or group.weight_decay is None else group.weight_decay
        return update + decay * parameter if decay else update

    return per_leaf(apply)


def multiply_rates(groups: Sequence[ParamGroup]) -> optax.GradientTransformation:
    """Multiply each update by the factor of the leaf's group."""

    def apply(path: tuple[Any, ...], update: Any, parameter: Any) -> Any:
        group = group_of(groups, path)
        return update if group is None else group.lr_multiplier * update

    return per_leaf(apply)
