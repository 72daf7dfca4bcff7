"""The layers of a model as one stacked tree, for a compiled step that scans or pipelines them.

The canonical tree keeps one subtree a layer, `layers_0` to `layers_{N-1}`: checkpoints, optimizer and average
have that form. A bank is stacked inside the compiled step, where something wants it, and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class StackView:
    """Which subtrees are a model's layers, in order.

    Attributes:
        length: the number of layers.
        prefix: of a layer's name; its index follows.

    Raises:
        ValueError: `length` is below 1.
    """

    length: int
    prefix: str = "layers_"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length} must be at least 1: a stack holds a layer")

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names, first to last."""
        return tuple(f"{self.prefix}{index}" for index in range(self.length))

    def stack(self, tree: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the layers with a leading layer axis on every leaf, and the rest of `tree`.

        Raises:
            ValueError: a layer is missing, or two layers differ in structure, shape or dtype.
        """
        missing = [name for name in self.names if name not in tree]
        if missing:
            raise ValueError(
                f"the tree has no {missing[0]!r}; a stack of {self.length} needs {self.prefix}N up to it"
            )
        layers = [tree[name] for name in self.names]
        first = jax.eval_shape(lambda: layers[0])
        for name, layer in zip(self.names, layers, strict=True):
            if jax.eval_shape(lambda layer=layer: layer) != first:
                raise ValueError(
                    f"{name!r} differs from {self.names[0]!r} in structure, shape or dtype; "
                    "only layers alike can be stacked"
                )
        bank = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        return bank, {name: value for name, value in tree.items() if name not in self.names}

    def unstack(self, bank: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
        """Undo `stack`."""
        layers = {
            name: jax.tree.map(lambda leaf, index=index: leaf[index], bank)
            for index, name in enumerate(self.names)
        }
        return {**rest, **layers}


@dataclass(frozen=True)
class DecoderBank:
    """Where a decoder's layers stand below every collection of a variables tree.

    Attributes:
        namespace: the keys between a collection and the layers; empty where the decoder is the whole model.
        view: the layers.
    """

    namespace: tuple[str, ...]
    view: StackView
