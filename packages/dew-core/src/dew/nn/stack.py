"""The layers of a model as one stacked tree, for a compiled step that scans or pipelines them.

The canonical tree keeps one subtree a layer, `layers_0` to `layers_{N-1}`: checkpoints, optimizer and average
have that form. A bank is stacked inside the compiled step, where something wants it, and never stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
        kinds: what each layer computes, where layers with parameters alike may differ (a window, say); empty
            where they do not.

    Raises:
        ValueError: `length` is below 1, or `kinds` are not as many.
    """

    length: int
    prefix: str = "layers_"
    kinds: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length} must be at least 1: a stack holds a layer")
        if self.kinds and len(self.kinds) != self.length:
            raise ValueError(f"{len(self.kinds)} kinds do not fit length={self.length}: give each layer one")

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
        layers = {name: tree[name] for name in self.names}
        _check_alike(layers)
        bank = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers.values())
        return bank, {name: value for name, value in tree.items() if name not in self.names}

    def staged(self, tree: Mapping[str, Any], stages: int) -> tuple[tuple[Any, ...], ...]:
        """For each place in a run of layers, that place's layer in each of `stages` equal runs.

        Layers need to be alike across the stages only, so that a pattern may repeat within every stage.

        Raises:
            ValueError: as `check_stages`, or two layers of equal place differ in structure, shape or dtype.
        """
        self.check_stages(stages)
        run = self.length // stages
        places = [{name: tree[name] for name in self.names[place::run]} for place in range(run)]
        for layers in places:
            _check_alike(layers)
        return tuple(tuple(layers.values()) for layers in places)

    def check_stages(self, stages: int) -> None:
        """Refuse stages that do not divide the layers, or whose runs of layers differ in kind.

        Raises:
            ValueError: naming numbers of stages that work.
        """
        if self._divides(stages):
            return
        fitting = [str(count) for count in range(1, self.length + 1) if self._divides(count)]
        cause = (
            f"whose kinds do not repeat in every stage: {', '.join(map(str, self.kinds))}"
            if self.length % stages == 0
            else "which the stages do not divide"
        )
        raise ValueError(
            f"mesh.stage={stages} cannot hold {self.length} layers, {cause}; use mesh.stage="
            f"{' or '.join(fitting)}"
        )

    def check_alike(self, tree: Mapping[str, Any], stages: int) -> None:
        """Refuse a tree whose layers of equal place in each stage differ.

        Args:
            tree: arrays or their shapes; without any of the layers it passes.
            stages: that divide the layers.

        Raises:
            ValueError: naming the two layers.
        """
        if any(name in tree for name in self.names):
            whole = {name: tree.get(name, {}) for name in self.names}
            jax.eval_shape(lambda layers: self.staged(layers, stages), whole)

    def _divides(self, stages: int) -> bool:
        run = self.length // stages
        return self.length % stages == 0 and self.kinds == self.kinds[:run] * stages

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


def _check_alike(layers: Mapping[str, Any]) -> None:
    (first, template), *others = layers.items()
    form = jax.eval_shape(lambda: template)
    for name, layer in others:
        if jax.eval_shape(lambda layer=layer: layer) != form:
            raise ValueError(
                f"{name!r} differs from {first!r} in structure, shape or dtype; "
                "only layers alike can be stacked"
            )
