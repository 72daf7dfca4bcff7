"""The decoder's tensors under their published names: one table from name to path and layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from dew.interop.decoders.layout import Layout
from dew.interop.decoders.shards import Tensor
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed

OUTER = {
    "model.embed_tokens.weight": "embed_tokens/embedding",
    "model.norm.weight": "norm/scale",
    "lm_head.weight": "lm_head/kernel",
}
LAYER = {
    "input_layernorm.weight": "input_layernorm/scale",
    "self_attn.q_proj.weight": "self_attn/q_proj/kernel",
    "self_attn.k_proj.weight": "self_attn/k_proj/kernel",
    "self_attn.v_proj.weight": "self_attn/v_proj/kernel",
    "self_attn.o_proj.weight": "self_attn/o_proj/kernel",
    "self_attn.q_norm.weight": "self_attn/q_norm/scale",
    "self_attn.k_norm.weight": "self_attn/k_norm/scale",
    "post_attention_layernorm.weight": "post_attention_layernorm/scale",
    "mlp.gate_proj.weight": "mlp/gate_proj/kernel",
    "mlp.up_proj.weight": "mlp/up_proj/kernel",
    "mlp.down_proj.weight": "mlp/down_proj/kernel",
}
"""Published name -> path in a layer's subtree. A kernel is [in, out] here and [out, in] there."""


def published(model: CausalTransformer, variables: Mapping[str, Any], layout: Layout) -> list[Tensor]:
    """The tensors of `variables` under their published names, each fetched when it is written.

    Raises:
        ValueError: variables that are not the model's: a leaf too many, one missing, or one of another shape.
    """
    leaves = _leaves(variables)
    _require_the_models_own(model, leaves)
    return [_tensor(name, path, leaves[path]) for name, path in tensor_names(model, layout) if path in leaves]


def _require_the_models_own(model: CausalTransformer, leaves: Mapping[str, jax.Array]) -> None:
    token = jax.ShapeDtypeStruct((1, 1), "int32")
    own = _leaves(jax.eval_shape(lambda ids: model.init(jax.random.key(0), ids), token))
    for path in sorted(own.keys() | leaves.keys()):
        if path not in leaves:
            raise ValueError(f"variables lack {path}; give the complete tree of the model")
        if path not in own:
            raise ValueError(f"variables hold {path}, which the model lacks; give the model's own alone")
        if own[path].shape != leaves[path].shape:
            raise ValueError(
                f"variables hold {path} of shape {leaves[path].shape}, and the model has {own[path].shape}"
            )


def tensor_names(model: CausalTransformer, layout: Layout) -> Iterator[tuple[str, str]]:
    """Published name and path, collection first, of every tensor that such a model may have."""
    for name, path in OUTER.items():
        yield name, f"params/{path}"
    table = LAYER | ({"mlp.gate_proj.weight": LAYER["mlp.up_proj.weight"]} if layout.doubled else {})
    for index, layer in enumerate(model.bank.view.names):
        for name, path in table.items():
            yield f"model.layers.{index}.{name}", f"params/{layer}/{path}"


def _leaves(variables: Mapping[str, Any]) -> dict[str, jax.Array]:
    found = jax.tree.leaves_with_path(unboxed(dict(variables)))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def _tensor(name: str, path: str, leaf: jax.Array) -> Tensor:
    turned = path.endswith("/kernel")

    def fetch() -> np.ndarray:
        value = np.asarray(leaf)
        return np.ascontiguousarray(value.T if turned else value)

    return Tensor(name, tuple(reversed(leaf.shape)) if turned else leaf.shape, leaf.dtype, fetch)
