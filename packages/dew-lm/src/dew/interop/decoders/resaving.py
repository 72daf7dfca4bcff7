"""Write a decoder that was read back into its family's folder, with the files it came with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from dew.interop.decoders.catalogue import layout_of
from dew.interop.decoders.folder import MAX_SHARD_BYTES, empty_folder, stored_dtype, write_json
from dew.interop.decoders.shards import Tensor, write_tensors
from dew.interop.decoders.stored import DTYPES
from dew.interop.decoders.tensors import published
from dew.nn.backbones.causal_transformer import CausalTransformer

KEPT = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files beside the model that are copied byte for byte."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file.

    Raises:
        ValueError: it holds no object.
    """
    if not path.is_file():
        return {}
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast("dict[str, Any]", found)


def save_as_read(
    model: CausalTransformer,
    variables: Mapping[str, Any],
    directory: str | os.PathLike[str],
    *,
    source: Path,
    config: Mapping[str, Any],
    dtypes: Mapping[str, str],
) -> None:
    """Write `model` in the family that `config` names; the source's tokenizer and generation files with it.

    Args:
        model: that was read from `source`.
        variables: its complete tree.
        directory: made where it is missing; must hold nothing.
        source: the folder it was read from; where it is gone, nothing is copied from it.
        config: of that folder.
        dtypes: a tensor's name -> the format's name of the dtype it is written in, where that is no wider.

    Raises:
        ValueError: variables that are not the model's.
        FileExistsError: the folder holds files.
    """
    layout = layout_of(model, config["model_type"])
    tensors = [_as_stored(tensor, dtypes.get(tensor.name)) for tensor in published(model, variables, layout)]
    folder = empty_folder(directory)
    kept = {name: config[name] for name in TOKEN_IDS if name in config}
    stored = {"torch_dtype": stored_dtype(tensors), "use_cache": True}
    write_json(folder / "config.json", {**layout.fields, **kept, **stored})
    for name in KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    write_tensors(folder, tensors, MAX_SHARD_BYTES)


def _as_stored(tensor: Tensor, code: str | None) -> Tensor:
    """The tensor in the dtype called `code`, from which it was widened."""
    dtype = tensor.dtype if code is None else jnp.dtype(DTYPES[code])
    if dtype == tensor.dtype or not np.can_cast(dtype, tensor.dtype):
        return tensor
    return replace(tensor, dtype=dtype, fetch=lambda: tensor.fetch().astype(dtype))
