"""Published models, read from a folder by the family whose architecture it names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from dew.interop.hub import REPOSITORY, downloaded
from dew.objectives.base import Variables

INDEXES = {"config.json": "model_type", "model_index.json": "_class_name"}
"""The file that describes a folder, and its field that names the architecture."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A published model. What can be done with it is on the subclass that its family's reader returns.

    Attributes:
        source: the folder it was read from.
        config: the file that describes it, as it stands.
        model: the module, computing in the dtype that was asked for.
        variables: its complete tree.
    """

    source: str
    config: Mapping[str, Any]
    model: Any
    variables: Variables


class Reader(Protocol):
    """What a component of kind `reader` is; its name and aliases are the architectures it reads."""

    def __call__(
        self, folder: Path, config: Mapping[str, Any], *, dtype: str | None, param_dtype: str | None
    ) -> Pretrained:
        """The model in `folder`, which `config` describes.

        Raises:
            ValueError: a field or a tensor that the family does not compute, by its name.
        """
        ...


def load_pretrained(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | None = None,
    param_dtype: str | None = None,
) -> Pretrained:
    """Read a published model from a folder, or from the Hugging Face Hub.

    Args:
        source: a folder with `config.json` or `model_index.json` and safetensors files, or the name of a
            repository that holds one. A folder of that name comes first.
        revision: branch, tag or commit of the repository; None is its main branch.
        dtype: computes: `float32`, `bfloat16`, `float16`, or `auto` for the stored one; None is float32.
        param_dtype: stores, likewise; None is float32.

    Raises:
        FileNotFoundError: no such folder or repository, or nothing in it says what it is.
        ImportError: a repository is named, and huggingface-hub is not installed.
        UnknownComponent: no installed package reads its architecture.
        ValueError: a revision of a folder; or the architecture's reader refuses a field or a tensor, by its
            name.
    """
    folder = located(source, revision)
    config, architecture = described(folder)
    from dew.registry import readers

    read: Reader = readers.get(architecture)
    return read(folder, config, dtype=dtype, param_dtype=param_dtype)


def located(source: str | os.PathLike[str], revision: str | None) -> Path:
    """The folder that `source` names, fetched where it is a repository's.

    Raises:
        FileNotFoundError: neither a folder nor a repository.
        ImportError: a repository, and huggingface-hub is not installed.
        ValueError: a revision of a folder.
    """
    folder, name = Path(source), os.fspath(source)
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is a repository's, and {name} is a folder; leave it out")
        return folder
    if isinstance(source, os.PathLike) or not REPOSITORY.fullmatch(name):
        raise FileNotFoundError(f"{name} is no folder, and not the name of a repository as owner/name is")
    return downloaded(name, revision)


def described(folder: Path) -> tuple[dict[str, Any], str]:
    """The description of the model in `folder`, and its architecture's name.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no JSON object, or names no architecture.
    """
    for name, field in INDEXES.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            config: object = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON ({error})") from error
        if not isinstance(config, dict):
            raise ValueError(f"{path} holds no JSON object")
        fields = cast("dict[str, Any]", config)
        architecture = fields.get(field)
        if not isinstance(architecture, str):
            raise ValueError(f"{path} has {field}={architecture!r}, so nothing says which architecture it is")
        return fields, architecture
    raise FileNotFoundError(
        f"{folder} holds neither {' nor '.join(INDEXES)}; give the folder of a published model"
    )
