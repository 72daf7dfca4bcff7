"""Variables trees by path: parts of them chosen, laid over each other, and held out of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from flax.traverse_util import flatten_dict, unflatten_dict

type Variables = Mapping[str, Any]
"""A Flax variables mapping: the `params` collection and any other collection the modules keep."""

type Path = tuple[str, ...]
"""The dict keys above one leaf of a variables tree, collection first."""

type PathFilter = Callable[[Path], bool]
"""Chooses leaves of a variables tree by path; used for averages, trainable subsets and optimizer groups."""


def everything(path: Path) -> bool:
    """Accept every leaf."""
    return True


def under(*prefix: str) -> PathFilter:
    """Return a filter that accepts the leaves below `prefix`, as in `under("params", "encoder")`."""

    def below(path: Path) -> bool:
        return path[: len(prefix)] == prefix

    return below


def _flat(tree: Variables, *, empty: bool = False) -> dict[Path, Any]:
    """The leaves by path, and with `empty` the branches without a leaf as well."""
    return cast("dict[Path, Any]", flatten_dict(cast("dict[str, Any]", tree), keep_empty_nodes=empty))


def _nested(flat: Mapping[Path, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", unflatten_dict(dict(flat)))


def select(tree: Variables, keep: PathFilter) -> dict[str, Any]:
    """Return the subtree of `tree` whose leaves `keep` accepts, nested as before, without empty branches."""
    return _nested({path: leaf for path, leaf in _flat(tree).items() if keep(path)})


def merge(tree: Variables, overlay: Variables) -> dict[str, Any]:
    """Return `tree` with every leaf that `overlay` holds replaced by the overlay's; empty branches stay.

    Raises:
        ValueError: `overlay` holds a leaf that `tree` lacks.
    """
    flat = _flat(tree, empty=True)
    laid = _flat(overlay)
    surplus = sorted("/".join(path) for path in laid.keys() - flat.keys())
    if surplus:
        raise ValueError(
            f"overlay holds {len(surplus)} leaves the tree lacks, first {surplus[0]!r}; "
            "merge only replaces leaves, so both trees must come from one initialisation"
        )
    return _nested(flat | laid)


FROZEN = "frozen"
"""The collection a partially trained run keeps its held weights under; the optimizer moves `params` alone."""


def freeze(variables: Variables, trainable: PathFilter) -> dict[str, Any]:
    """Move the `params` leaves that `trainable` rejects to the `frozen` collection.

    Args:
        variables: a tree with `params` and without `frozen`.
        trainable: reads full paths, `("params", ...)`.

    Raises:
        ValueError: the filter keeps every leaf or none, or the tree is already split.
    """
    if FROZEN in variables:
        raise ValueError(f"variables already hold a {FROZEN!r} collection; thaw them before freezing again")
    params = {path: leaf for path, leaf in _flat(variables).items() if path[0] == "params"}
    kept = {path for path in params if trainable(path)}
    if not kept or len(kept) == len(params):
        what = "none" if not kept else "all"
        raise ValueError(
            f"trainable keeps {what} of the {len(params)} params leaves, so there is nothing to split; "
            "a filter must keep some leaves and reject others"
        )
    rest = {name: tree for name, tree in variables.items() if name != "params"}
    held = {(FROZEN, *path[1:]): leaf for path, leaf in params.items() if path not in kept}
    return {**rest, **_nested({path: params[path] for path in kept} | held)}


def thaw(variables: Variables) -> dict[str, Any]:
    """Undo `freeze`: one `params` collection again. A tree that was never split is returned as it is."""
    if FROZEN not in variables:
        return dict(variables)
    rest = {name: tree for name, tree in variables.items() if name not in ("params", FROZEN)}
    params = _flat(variables["params"])
    held = _flat(variables[FROZEN])
    both = sorted("/".join(path) for path in params.keys() & held.keys())
    if both:
        raise ValueError(f"{both[0]!r} stands in params and in {FROZEN!r}; a leaf belongs to one of them")
    return {**rest, "params": _nested(params | held)}
