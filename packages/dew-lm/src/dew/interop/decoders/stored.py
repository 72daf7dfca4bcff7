"""The tensors of a published folder, one in memory at a time. Files are opened by the safetensors library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import safetensors
from safetensors import safe_open

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def stored_in(folder: Path) -> dict[str, Path]:
    """Tensor -> the file that holds it.

    Raises:
        FileNotFoundError: no tensors, or a file of the index is missing.
        ValueError: an index that is damaged or leads out of the folder, or a file in another format.
    """
    if (folder / SINGLE).is_file():
        return dict.fromkeys(names_in(folder / SINGLE), folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} holds neither {SINGLE} nor {INDEX}; other formats are not read")
    try:
        files: Mapping[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / INDEX} is damaged: {error!r}") from error
    found: dict[str, Path] = {}
    for name in sorted(set(files.values())):
        if Path(name).name != name:
            raise ValueError(f"{folder / INDEX} names {name!r}, which is no file of the folder")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing, and {INDEX} names it")
        found |= dict.fromkeys(names_in(folder / name), folder / name)
    return found


def names_in(path: Path) -> list[str]:
    """The tensors of one file.

    Raises:
        ValueError: it is not in the format.
    """
    try:
        with safe_open(path, framework="flax") as file:
            return list(file.keys())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def shape_of(path: Path, name: str) -> tuple[int, ...]:
    """A tensor's shape, without reading it."""
    with safe_open(path, framework="flax") as file:
        return tuple(file.get_slice(name).get_shape())


def tensor(path: Path, name: str) -> jax.Array:
    """One tensor in its stored dtype."""
    with safe_open(path, framework="flax") as file:
        value: Any = file.get_tensor(name)
        return value
