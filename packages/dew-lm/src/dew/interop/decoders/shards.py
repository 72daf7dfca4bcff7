"""Write tensors as safetensors files, one tensor in memory at a time.

A file is the header's length (u64, little endian), the header (JSON: name -> dtype, shape and byte range
behind the header) and the tensors' bytes. Beyond a size the tensors go to several files, and
`model.safetensors.index.json` says which one holds each. Format: huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""NumPy's name of a dtype -> the format's."""
ALIGNMENT = 8


@dataclass(frozen=True)
class Tensor:
    """A tensor that is not fetched yet.

    Attributes:
        name: its key in the file.
        shape: of what `fetch` returns.
        dtype: likewise.
        fetch: brings it to the host, contiguous.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fetch: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(folder: Path, tensors: Sequence[Tensor], max_shard_bytes: int) -> list[Path]:
    """Write `tensors` into `folder` and return the files.

    One file, or several of at most `max_shard_bytes` of tensors each (a larger tensor has a file to itself)
    with their index.

    Raises:
        ValueError: a limit below 1, or a dtype the format lacks.
    """
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes={max_shard_bytes} must be at least 1")
    for tensor in tensors:
        if tensor.dtype.name not in DTYPES:
            raise ValueError(
                f"{tensor.name} is stored as {tensor.dtype.name}; a published file holds {', '.join(DTYPES)}"
            )
    shards = _split(tensors, max_shard_bytes)
    if len(shards) == 1:
        return [_write_file(folder / "model.safetensors", shards[0])]
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    files = [_write_file(folder / name, shard) for name, shard in zip(names, shards, strict=True)]
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
        "weight_map": {each.name: name for name, shard in zip(names, shards, strict=True) for each in shard},
    }
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n")
    return [*files, path]


def _split(tensors: Sequence[Tensor], limit: int) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def _write_file(path: Path, tensors: Sequence[Tensor]) -> Path:
    with path.open("wb") as file:
        _write_header(file, tensors)
        for tensor in tensors:
            value = tensor.fetch()
            assert (value.shape, value.dtype) == (tensor.shape, tensor.dtype), tensor.name
            # A view of bytes: bfloat16 is no buffer format that files take.
            file.write(value.reshape(-1).view(np.uint8).data)
    return path


def _write_header(file: BinaryIO, tensors: Sequence[Tensor]) -> None:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {
            "dtype": DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
