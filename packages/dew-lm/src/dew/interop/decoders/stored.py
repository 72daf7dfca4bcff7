"""The tensors of a published folder, one in memory at a time. Files are opened by the safetensors library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import safe_open

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The format's name of a dtype -> NumPy's, of those that parameters have."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is not read yet.

    Attributes:
        path: of its file.
        name: in the file.
        shape: of it.
        dtype: the format's name.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def numpy_dtype(self) -> np.dtype:
        """NumPy's dtype.

        Raises:
            ValueError: it is none that parameters have.
        """
        if self.dtype not in DTYPES:
            raise ValueError(
                f"the tensor {self.name} is stored as {self.dtype}; {', '.join(DTYPES)} are read"
            )
        return jnp.dtype(DTYPES[self.dtype])

    def read(self) -> np.ndarray:
        """The tensor in its stored dtype. The file is mapped for as long as that takes."""
        with safe_open(self.path, framework="numpy") as file:
            value: Any = file.get_tensor(self.name)
            return value


def stored_in(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder by name; their headers are read, and the files are whole.

    Raises:
        FileNotFoundError: no tensors, or a file of the index is missing.
        ValueError: an index that is damaged or leads out of the folder, or a file that is cut short or in
            another format.
    """
    if (folder / SINGLE).is_file():
        return _tensors(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} holds neither {SINGLE} nor {INDEX}{_pickled(folder)}")
    named = _indexed(folder / INDEX)
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(named.values())):
        path = folder / file
        if Path(file).name != file or path.suffix != ".safetensors":
            raise ValueError(f"{folder / INDEX} names {file!r}, which is no safetensors file of the folder")
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing, and {INDEX} names it")
        found |= _tensors(path)
    for name in named:
        if name not in found:
            raise ValueError(f"{folder / INDEX} names the tensor {name}, which {named[name]} lacks")
    return found


def _indexed(index: Path) -> dict[str, str]:
    """Tensor -> file, as the index says."""
    try:
        record: Any = json.loads(index.read_text())
    except ValueError as error:
        raise ValueError(f"{index} is no JSON: {error}; fetch it again") from error
    files: Any = record.get("weight_map") if isinstance(record, dict) else None
    if not isinstance(files, dict) or not files:
        held = f"weight_map={files!r}" if isinstance(record, dict) else f"{record!r}"
        raise ValueError(
            f"{index} holds {held:.80}; it must hold an object weight_map that names the file of every "
            "tensor: fetch it again"
        )
    named = cast("dict[str, Any]", files)
    for name, file in named.items():
        if not isinstance(file, str):
            raise ValueError(f"{index} weight_map.{name}={file!r} must be the name of a file")
    return named


def _pickled(folder: Path) -> str:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not pickles:
        return "; other formats are not read"
    return (
        f", but {', '.join(pickles)}: a pickle can run any code and is never read; convert it to safetensors "
        "with the tool that wrote it"
    )


def _tensors(path: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {
                name: StoredTensor(path, name, tuple(each.get_shape()), str(each.get_dtype()))
                for name, each in slices.items()
            }
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from error
