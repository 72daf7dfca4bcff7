"""One process's part of a state in a folder: the pieces that its devices hold, and an index of them.

`pieces.bin` holds the pieces' bytes one after another. `index.json` holds, for every leaf, its path, whole
shape and dtype, and for each piece its bounds in the leaf, its place in the file and its CRC-32. A piece that
several devices of the process hold is written once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

PIECES, INDEX = "pieces.bin", "index.json"

type Bounds = tuple[tuple[int, int], ...]
"""Begin and end of a piece along every axis of its leaf."""


@dataclass(frozen=True)
class Held:
    """What this process holds of a leaf, in its own memory.

    Attributes:
        shape: of the whole leaf; a key's is that of its data.
        dtype: NumPy's name of it.
        key: the implementation of a typed key, else None.
        pieces: by their bounds.
    """

    shape: tuple[int, ...]
    dtype: str
    key: str | None
    pieces: Mapping[Bounds, np.ndarray]


def copied(tree: Any) -> dict[str, Held]:
    """What this process holds of every array of `tree`, by path; the arrays may then be reused."""
    leaves = jax.tree.leaves_with_path(tree)
    for _, leaf in leaves:
        for shard in _distinct(leaf).values():
            _plain(shard).copy_to_host_async()
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _held(leaf) for path, leaf in leaves}


def write_part(folder: Path, held: Mapping[str, Held], record: Mapping[str, Any]) -> None:
    """Write the pieces and the index into `folder`, which exists; `record` comes back as it is given."""
    leaves: dict[str, Any] = {}
    with (folder / PIECES).open("wb") as file:
        for path, leaf in held.items():
            pieces: list[Any] = []
            for bounds, value in leaf.pieces.items():
                content = value.reshape(-1).view(np.uint8).data
                pieces.append([bounds, file.tell(), len(content), zlib.crc32(content)])
                file.write(content)
            leaves[path] = {"shape": leaf.shape, "dtype": leaf.dtype, "key": leaf.key, "pieces": pieces}
    (folder / INDEX).write_text(json.dumps({"record": dict(record), "leaves": leaves}))


class Part:
    """A written part, opened for reading.

    Args:
        folder: where it lies.

    Raises:
        OSError: the index cannot be read.
        ValueError: it is no index.
        KeyError: it is another's.
    """

    def __init__(self, folder: Path) -> None:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text())
        self._folder = folder
        self._leaves = cast("dict[str, dict[str, Any]]", index["leaves"])
        self.record = cast("dict[str, Any]", index["record"])

    def stored(self) -> dict[str, Any]:
        """Shape and dtype of every whole leaf, nested by the parts of its path."""
        shapes = {
            tuple(path.split("/")): jax.ShapeDtypeStruct(tuple(leaf["shape"]), jnp.dtype(leaf["dtype"]))
            for path, leaf in self._leaves.items()
        }
        return unflatten_dict(shapes)

    def lacking(self, template: Any) -> str | None:
        """The path of a leaf of which this process needs a piece that is not here, or None."""
        for path, leaf in jax.tree.leaves_with_path(template):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if name in self._leaves and not _wanted(leaf).keys() <= self._pieces(name).keys():
                return name
        return None

    def read(self, template: Any) -> Any:
        """The arrays that `template` describes, placed as it says.

        Raises:
            OSError: the pieces cannot be read.
            ValueError: a piece is damaged, or one that the placement needs is not here.
        """
        with (self._folder / PIECES).open("rb") as file:
            return jax.tree_util.tree_map_with_path(
                lambda path, leaf: self._placed(
                    file, jax.tree_util.keystr(path, simple=True, separator="/"), leaf
                ),
                template,
            )

    def _pieces(self, name: str) -> dict[Bounds, tuple[int, int, int]]:
        found = self._leaves[name]["pieces"]
        keyed = self._leaves[name]["key"] is not None
        return {
            tuple((begin, end) for begin, end in (bounds[:-1] if keyed else bounds)): (start, size, check)
            for bounds, start, size, check in found
        }

    def _placed(self, file: Any, name: str, leaf: Any) -> jax.Array:
        held, key = self._pieces(name), self._leaves[name]["key"]
        dtype, arrays = jnp.dtype(self._leaves[name]["dtype"]), []
        for bounds, devices in _wanted(leaf).items():
            if bounds not in held:
                raise ValueError(f"{name} is wanted at {list(bounds)}, which another process holds")
            sizes = [end - begin for begin, end in bounds]
            value = self._value(file, name, held[bounds], dtype).reshape([*sizes, *([-1] if key else [])])
            for device in devices:
                place = jax.sharding.SingleDeviceSharding(device, memory_kind=leaf.sharding.memory_kind)
                array = jax.device_put(value, place)
                arrays.append(jax.random.wrap_key_data(array, impl=key) if key else array)
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, arrays)

    def _value(self, file: Any, name: str, span: tuple[int, int, int], dtype: Any) -> np.ndarray:
        start, size, check = span
        file.seek(start)
        content = file.read(size)
        if len(content) != size or zlib.crc32(content) != check:
            raise ValueError(f"the bytes of {name} are not those that were written")
        return np.frombuffer(content, dtype)


def _held(leaf: Any) -> Held:
    key = str(jax.random.key_impl(leaf)) if _is_key(leaf) else None
    pieces = {
        bounds: np.array(_plain(shard), order="C", copy=True) for bounds, shard in _distinct(leaf).items()
    }
    tail = next(iter(pieces.values())).shape[leaf.ndim :]
    whole = tuple((0, size) for size in tail)
    dtype = next(iter(pieces.values())).dtype.name
    placed = {bounds + whole: value for bounds, value in pieces.items()}
    return Held((*leaf.shape, *tail), dtype, key, placed)


def _distinct(leaf: Any) -> dict[Bounds, Any]:
    """The arrays of this process's devices, one for each part of the leaf."""
    return {_bounds(shard.index, leaf.shape): shard.data for shard in reversed(leaf.addressable_shards)}


def _wanted(leaf: Any) -> dict[Bounds, list[Any]]:
    """The parts that this process's devices are to hold, each with its devices."""
    found: dict[Bounds, list[Any]] = {}
    for device, index in leaf.sharding.addressable_devices_indices_map(tuple(leaf.shape)).items():
        found.setdefault(_bounds(index, leaf.shape), []).append(device)
    return found


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index[: len(shape)], shape, strict=True))


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(array: Any) -> Any:
    return jax.random.key_data(array) if _is_key(array) else array
