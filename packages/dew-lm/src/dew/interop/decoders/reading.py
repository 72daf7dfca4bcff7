"""Read a published decoder of the layouts that `layout_of` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from dew.interop.decoders.fields import model_of, refuse_class
from dew.interop.decoders.layout import layout_of
from dew.interop.decoders.stored import shape_of, stored_in, tensor
from dew.interop.decoders.tensors import tensor_names
from dew.interop.pretrained import Pretrained
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Variables
from dew.training.opening import named_dtype


@dataclass(frozen=True, kw_only=True)
class PretrainedDecoder(Pretrained):
    """A published decoder: a `CausalTransformer` and its tree, ready to train or score."""

    model: CausalTransformer


def read_decoder(
    folder: Path, config: Mapping[str, Any], *, dtype: str | None, param_dtype: str | None
) -> PretrainedDecoder:
    """The decoder in `folder`; see `dew.interop.load_pretrained`.

    Raises:
        ValueError: a field that the decoder does not compute, or a tensor that is missing, one too many, or
            of another shape.
        FileNotFoundError: the tensors.
    """
    refuse_class(config)
    files = stored_in(folder)
    stored = jnp.result_type(*{tensor(files[name], name).dtype for name in list(files)[:1]})
    storage = chosen("param_dtype", param_dtype, stored)
    model = model_of(config, chosen("dtype", dtype, stored), storage)
    variables = read_variables(model, files, None if param_dtype == "auto" else storage)
    return PretrainedDecoder(source=str(folder), config=config, model=model, variables=variables)


def chosen(field: str, name: str | None, stored: Any) -> Any:
    """The dtype called `name`: None is float32, `auto` the stored one."""
    return jnp.dtype(jnp.float32) if name is None else named_dtype(field, name) or stored


def read_variables(model: CausalTransformer, files: Mapping[str, Path], dtype: Any) -> Variables:
    """The model's tree from the tensors of `files`, in `dtype` or, for None, as they are stored.

    Raises:
        ValueError: a tensor that is missing, one too many, or of another shape.
    """
    token = jax.ShapeDtypeStruct((1, 1), "int32")
    own = jax.eval_shape(lambda ids: model.init(jax.random.key(0), ids), token)
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(unboxed(own))
    }
    names = {name: path for name, path in tensor_names(model, layout_of(model)) if path in shapes}
    refuse_others(names, shapes, files)
    flat: dict[str, jax.Array] = {}
    for name, path in names.items():
        value = tensor(files[name], name)
        value = value.T if path.endswith("/kernel") else value
        value = value if dtype is None else value.astype(dtype)
        if path in flat and not bool(jnp.array_equal(flat[path], value)):
            raise ValueError(
                f"{name} differs from the projection that it gates; relu gates a block by its own input "
                "alone here"
            )
        flat[path] = value
    return unflatten_dict(flat, sep="/")


def refuse_others(
    names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], files: Mapping[str, Path]
) -> None:
    """Refuse tensors that are not the model's, before any of them is read."""
    for name in sorted(names.keys() | files.keys()):
        if name not in files:
            raise ValueError(f"the folder lacks the tensor {name}, which this architecture has")
        if name not in names:
            raise ValueError(f"the folder holds the tensor {name}, which this architecture lacks")
        wanted, given = shapes[names[name]], shape_of(files[name], name)
        wanted = tuple(reversed(wanted)) if names[name].endswith("/kernel") else wanted
        if given != wanted:
            raise ValueError(f"the tensor {name} has shape {given}, and config.json makes it {wanted}")
