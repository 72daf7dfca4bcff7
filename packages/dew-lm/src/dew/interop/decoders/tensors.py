"""The decoder's tensors under their published names, as a family's rows say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dew.interop.decoders.catalogue import Layout
from dew.interop.decoders.family import Row
from dew.interop.decoders.forms import Form, Shape
from dew.interop.decoders.shards import Tensor
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed

GATE, UP = "mlp/gate_proj/", "mlp/up_proj/"


@dataclass(frozen=True, kw_only=True)
class Held:
    """A published tensor of one model.

    Attributes:
        name: in the file.
        paths: the leaves it holds, collection first.
        shapes: of its parts.
        form: how it holds them.
        index: which slice of the leaf it is, or None for whole leaves.
        heads: query heads of the model.
    """

    name: str
    paths: tuple[str, ...]
    shapes: tuple[Shape, ...]
    form: Form
    index: int | None
    heads: int

    @property
    def shape(self) -> Shape:
        """Of the tensor."""
        return self.form.shape(self.shapes, self.heads)

    def join(self, leaves: Mapping[str, Any]) -> np.ndarray:
        """The tensor, contiguous, from the leaves of a tree."""
        parts = [np.asarray(leaves[path]) for path in self.paths]
        parts = parts if self.index is None else [part[self.index] for part in parts]
        return np.ascontiguousarray(self.form.join(parts, self.heads))

    def split(self, value: np.ndarray) -> list[np.ndarray]:
        """The parts of the tensor."""
        return self.form.split(value, self.shapes, self.heads)


def held_tensors(
    model: CausalTransformer, layout: Layout, shapes: Mapping[str, Shape] | None = None
) -> list[Held]:
    """The tensors that files of `model` hold.

    Args:
        model: held.
        layout: of the files.
        shapes: of the model's leaves, where they are known; they are traced otherwise.

    Raises:
        ValueError: a parameter that the family has no tensor for.
    """
    shapes = leaf_shapes(model) if shapes is None else shapes
    found = [held for row in expanded(model, layout) if (held := _held(row, model, shapes)) is not None]
    told = {path for held in found for path in held.paths}
    for path in shapes:
        if path not in told:
            raise ValueError(f"the layout of {layout.model_type} has no tensor for {path}")
    return found


def expanded(model: CausalTransformer, layout: Layout) -> Iterator[Row]:
    """The family's rows with one for each layer, and with the gates that repeat an up projection."""
    for row in layout.family.rows:
        each = f"{row.name} {' '.join(row.paths)}"
        for layer in range(model.num_layers) if "{layer}" in each else (0,):
            filled = replace(
                row,
                name=row.name.replace("{layer}", str(layer)),
                paths=tuple(path.replace("{layer}", str(layer)) for path in row.paths),
            )
            if "{expert}" in filled.name:
                yield from of_experts(filled, model)
                continue
            if layout.doubled and GATE in filled.paths[0]:
                filled = replace(filled, paths=(filled.paths[0].replace(GATE, UP),))
            yield filled


def of_experts(row: Row, model: CausalTransformer) -> Iterator[Row]:
    """`row` for each expert of the model."""
    for expert in range(model.mixture.num_experts if model.mixture is not None else 0):
        yield replace(row, name=row.name.replace("{expert}", str(expert)), index=expert)


def leaf_shapes(model: CausalTransformer) -> dict[str, Shape]:
    """The shape of every leaf of the model's tree, by path, collection first."""
    token = jax.ShapeDtypeStruct((1, 1), "int32")
    own = jax.eval_shape(lambda ids: model.init(jax.random.key(0), ids), token)
    return {path: leaf.shape for path, leaf in leaves_of(own).items()}


def leaves_of(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a tree by path."""
    found = jax.tree.leaves_with_path(unboxed(dict(variables)))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def published(model: CausalTransformer, variables: Mapping[str, Any], layout: Layout) -> list[Tensor]:
    """The tensors of `variables` under their published names, each fetched when it is written.

    Raises:
        ValueError: variables that are not the model's: a leaf too many, one missing, or one of another shape;
            or leaves of two dtypes in one tensor.
    """
    leaves, shapes = leaves_of(variables), leaf_shapes(model)
    _require_the_models_own(shapes, leaves)
    return [_tensor(held, leaves) for held in held_tensors(model, layout, shapes)]


def _held(row: Row, model: CausalTransformer, shapes: Mapping[str, Shape]) -> Held | None:
    paths = tuple(path if path in shapes else f"params/{path}" for path in row.paths)
    if any(path not in shapes for path in paths):
        return None
    parts = tuple(shapes[path] if row.index is None else shapes[path][1:] for path in paths)
    return Held(
        name=row.name, paths=paths, shapes=parts, form=row.form, index=row.index, heads=model.num_heads
    )


def _require_the_models_own(shapes: Mapping[str, Shape], leaves: Mapping[str, Any]) -> None:
    for path in sorted(shapes.keys() | leaves.keys()):
        if path not in leaves:
            raise ValueError(f"variables lack {path}; give the complete tree of the model")
        if path not in shapes:
            raise ValueError(f"variables hold {path}, which the model lacks; give the model's own alone")
        if shapes[path] != leaves[path].shape:
            raise ValueError(
                f"variables hold {path} of shape {leaves[path].shape}, and the model has {shapes[path]}"
            )


def _tensor(held: Held, leaves: Mapping[str, Any]) -> Tensor:
    dtypes: Sequence[np.dtype] = [leaves[path].dtype for path in held.paths]
    if len(set(dtypes)) > 1:
        raise ValueError(
            f"{held.name} holds {', '.join(held.paths)}, which are stored as "
            f"{', '.join(dtype.name for dtype in dtypes)}; give them one dtype"
        )
    return Tensor(held.name, held.shape, dtypes[0], lambda: held.join(leaves))
