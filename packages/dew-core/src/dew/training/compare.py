"""How a stored tree differs from the tree it is read into, in words."""

from __future__ import annotations

from typing import Any

import jax

SHOWN = 5


def differences(template: Any, stored: Any) -> list[str]:
    """One line for each leaf that only one tree has, or that has another shape or dtype."""
    expected = _leaves(template)
    found = _leaves(stored)
    lines: list[str] = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name}: missing from the checkpoint, {_shown(*expected[name])} here")
        elif name not in expected:
            lines.append(f"{name}: {_shown(*found[name])} in the checkpoint, absent here")
        elif expected[name] != found[name]:
            lines.append(f"{name}: {_shown(*found[name])} in the checkpoint, {_shown(*expected[name])} here")
    return lines


def refuse_differences(lines: list[str], where: str) -> None:
    """Raise where there are differences, listing the first of them.

    Raises:
        ValueError: `lines` is not empty.
    """
    if not lines:
        return
    more = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    listed = "".join(f"\n  {line}" for line in lines[:SHOWN])
    raise ValueError(
        f"{where} does not fit this run's state in {len(lines)} leaves:{listed}{more}\n"
        "Build the model, optimizer and average the checkpoint was written with"
    )


def _leaves(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): _described(leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _described(leaf: Any) -> tuple[tuple[int, ...], str]:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(leaf.shape), str(leaf.dtype)


def _shown(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}{list(shape)}"
