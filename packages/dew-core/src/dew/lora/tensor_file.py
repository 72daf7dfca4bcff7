"""A file of named tensors in the safetensors format, small enough to be held in memory.

The header's length (u64, little endian), the header (JSON: name -> dtype, shape and byte range behind the
header), the tensors' bytes. Nothing a file says is trusted: every range is checked against the file before
an array is made. Format: huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The format's name of a dtype -> NumPy's."""
MAX_HEADER = 100_000_000
ALIGNMENT = 8


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write `tensors` to `path`, in the order of their names.

    Raises:
        ValueError: a dtype the format lacks.
    """
    codes = {name: code for code, name in DTYPES.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in sorted(tensors):
        value = tensors[name]
        if value.dtype.name not in codes:
            raise ValueError(f"{name} is stored as {value.dtype.name}; a file holds {', '.join(codes)}")
        span = [begin, begin + value.nbytes]
        header[name] = {"dtype": codes[value.dtype.name], "shape": list(value.shape), "data_offsets": span}
        begin += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of `path` by name.

    Raises:
        FileNotFoundError: no file there.
        ValueError: it is not in the format, or holds a dtype other than the floating ones.
    """
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER, len(content) - 8):
        raise ValueError(f"{path} is no safetensors file: its header is longer than the file")
    try:
        header: object = json.loads(content[8 : 8 + length])
    except ValueError as error:
        raise ValueError(f"{path} is no safetensors file: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file: its header is no object")
    entries = cast("dict[str, Any]", header)
    body = memoryview(content)[8 + length :]
    return {name: _tensor(path, name, entries[name], body) for name in entries if name != "__metadata__"}


def _tensor(path: Path, name: str, entry: Any, body: memoryview) -> np.ndarray:
    try:
        code, (begin, end) = entry["dtype"], entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: the entry of {name} lacks dtype, shape or range ({entry!r})") from error
    if code not in DTYPES:
        raise ValueError(f"{path}: {name} is stored as {code!r}; {', '.join(DTYPES)} are read")
    dtype = jnp.dtype(DTYPES[code])
    whole = isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end <= len(body)
    if not whole or min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{path}: the range [{begin}, {end}] of {name} is not that of {code} {list(shape)}")
    return np.frombuffer(body[begin:end], dtype).reshape(shape)
