"""Factors in a variables tree: made beside their kernels, found, and added to them.

A module that is adapted holds `kernel` [in, out], `lora_a` [in, rank] and `lora_b` [rank, out]; its weight is
`kernel + scale * lora_a lora_b`. A starts uniform in +-1/sqrt(in) and B at zero, as PEFT starts them, so that
a new adapter changes nothing.
"""

from __future__ import annotations

import difflib
import math
import zlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax.core import meta
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.lora.config import LORA_A, LORA_B, LoRA
from dew.objectives.base import Path, Variables, thaw

KERNEL = "kernel"


def adapt(variables: Variables, lora: LoRA, *, key: jax.Array) -> dict[str, Any]:
    """Return `variables` with the factors of every module that `lora` targets.

    Args:
        variables: a complete tree, leaves boxed with their axis names or plain. Factors it holds are kept.
        lora: which modules.
        key: draws A; each module from a key of its own.

    Raises:
        ValueError: a target that names no module with a two-dimensional kernel, or held factors of another
            rank.
    """
    flat = flattened(thaw(variables))
    for module in targeted(flat, lora):
        kernel = flat[(*module, KERNEL)]
        width, features = unboxed_leaf(kernel).shape
        own = jax.random.fold_in(key, zlib.crc32("/".join(module).encode()))
        dtype = unboxed_leaf(kernel).dtype
        if (*module, LORA_A) not in flat:
            bound = 1 / math.sqrt(width)
            drawn = jax.random.uniform(own, (width, lora.rank), dtype, -bound, bound)
            flat[(*module, LORA_A)] = boxed_as(kernel, drawn, 0)
            flat[(*module, LORA_B)] = boxed_as(kernel, jnp.zeros((lora.rank, features), dtype), 1)
        check_rank(module, flat, lora)
    return nested(flat)


def merged(variables: Variables, lora: LoRA) -> dict[str, Any]:
    """Return the plain model's tree, each delta added to its kernel: `kernel + scale * A B`.

    The product and the sum are computed in float32 or wider and rounded once, to the kernel's dtype. A tree
    without factors is returned as it is, with `frozen` leaves back in `params`.

    Raises:
        ValueError: factors without a kernel, or of another rank than `lora.rank`.
    """
    flat = flattened(thaw(variables))
    for module in modules_with_factors(flat):
        check_rank(module, flat, lora)
        a, b = (unboxed_leaf(flat.pop((*module, name))) for name in (LORA_A, LORA_B))
        kernel = flat[(*module, KERNEL)]
        whole = added(unboxed_leaf(kernel), a, b, lora.scale)
        flat[(*module, KERNEL)] = kernel.replace(value=whole) if is_boxed(kernel) else whole
    return nested(flat)


def added(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """Return `kernel + scale * a b` in the kernel's dtype."""
    wide = jnp.promote_types(kernel.dtype, jnp.float32)
    delta = jnp.dot(a.astype(wide), b.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(wide) + delta * scale).astype(kernel.dtype)


def factors_of(variables: Variables) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Return (A, B) of every adapted module, by its path under `params`."""
    flat = flattened(thaw(variables))
    return {
        "/".join(module[1:]): (
            unboxed_leaf(flat[(*module, LORA_A)]),
            unboxed_leaf(flat[(*module, LORA_B)]),
        )
        for module in modules_with_factors(flat)
    }


def without_factors(variables: Variables) -> dict[str, Any]:
    """Return the base model's tree: kernels as they are, no factors, nothing frozen."""
    flat = flattened(thaw(variables))
    return nested({path: leaf for path, leaf in flat.items() if path[-1] not in (LORA_A, LORA_B)})


def with_factors(variables: Variables, factors: Mapping[str, tuple[jax.Array, jax.Array]]) -> dict[str, Any]:
    """Return `variables` with (A, B) at each module path under `params`; undoes `without_factors`."""
    flat = flattened(thaw(variables))
    for module, (a, b) in factors.items():
        path = ("params", *module.split("/"))
        kernel = flat.get((*path, KERNEL))
        if kernel is None or unboxed_leaf(kernel).shape != (a.shape[0], b.shape[1]):
            found = "none there" if kernel is None else unboxed_leaf(kernel).shape
            raise ValueError(
                f"the factors of {module} are for a kernel of shape {(a.shape[0], b.shape[1])}, and the "
                f"model has {found}; use the adapter with its own base model"
            )
        flat[(*path, LORA_A)] = boxed_as(kernel, a, 0)
        flat[(*path, LORA_B)] = boxed_as(kernel, b, 1)
    return nested(flat)


def targeted(flat: Mapping[Path, Any], lora: LoRA) -> list[Path]:
    """The modules of a flat tree that `lora` adapts, collection first, in order.

    Raises:
        ValueError: a target that names no module, or one whose kernel is not two-dimensional.
    """
    known = {"/".join(path[1:-1]): path[:-1] for path in flat if path[0] == "params" and path[-1] == KERNEL}
    for target in lora.targets:
        if not any(LoRA((target,)).adapts(module) for module in known):
            raise ValueError(
                f"lora.targets={target!r} names no module with a kernel; {_suggestion(target, list(known))}"
            )
    chosen = sorted(module for module in known if lora.adapts(module))
    for module in chosen:
        shape = unboxed_leaf(flat[(*known[module], KERNEL)]).shape
        if len(shape) != 2:
            raise ValueError(
                f"lora.targets names {module}, whose kernel has the shape {shape}; a delta of this "
                "version is for a kernel [in, out], so name the others alone"
            )
    return [known[module] for module in chosen]


def modules_with_factors(flat: Mapping[Path, Any]) -> list[Path]:
    """The modules of a flat tree that hold factors, collection first, in order."""
    return sorted(path[:-1] for path in flat if path[-1] == LORA_A)


def check_rank(module: Path, flat: Mapping[Path, Any], lora: LoRA) -> None:
    """Refuse factors that are not of `lora.rank`, or that no kernel stands beside."""
    shapes = [
        None if leaf is None else unboxed_leaf(leaf).shape
        for leaf in (flat.get((*module, name)) for name in (KERNEL, LORA_A, LORA_B))
    ]
    kernel, a, b = shapes
    if kernel is None or a != (kernel[0], lora.rank) or b != (lora.rank, kernel[1]):
        raise ValueError(
            f"{'/'.join(module)} holds factors of shapes {a} and {b} for a kernel of shape {kernel}, and "
            f"lora.rank={lora.rank}; set lora.rank to the factors' own"
        )


def flattened(tree: Variables) -> dict[Path, Any]:
    """The leaves by path; empty branches stay."""
    return cast("dict[Path, Any]", flatten_dict(dict(tree), keep_empty_nodes=True))


def nested(flat: Mapping[Path, Any]) -> dict[str, Any]:
    """Undo `flattened`."""
    return cast("dict[str, Any]", unflatten_dict(dict(flat)))


def unboxed_leaf(leaf: Any) -> Any:
    """The array of a leaf that may be boxed with axis names."""
    return leaf.value if is_boxed(leaf) else leaf


def is_boxed(leaf: Any) -> bool:
    """Whether a leaf is an array in a box with its axis names."""
    return isinstance(leaf, meta.Partitioned)


def boxed_as(kernel: Any, factor: jax.Array, side: int) -> Any:
    """A factor with the axis name that its kernel has on `side`; the rank has none."""
    if not is_boxed(kernel):
        return factor
    names = (kernel.names[0], None) if side == 0 else (None, kernel.names[1])
    return kernel.replace(value=factor, names=names)


def _suggestion(target: str, known: list[str]) -> str:
    parts = sorted({part for module in known for part in module.split("/")})
    for wanted in target.strip("/").split("/"):
        if not any(PurePosixPath(part).match(wanted) for part in parts):
            close = difflib.get_close_matches(wanted, parts, n=3)
            if close:
                return f"did you mean {', '.join(close)}?"
    names = sorted({module.rpartition("/")[2] for module in known})
    return f"modules have the names {', '.join(names[:8])}"
