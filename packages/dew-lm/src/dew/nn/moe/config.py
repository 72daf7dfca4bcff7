"""The shape of a mixture of experts, as plain values. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Feed-forward blocks of which every token passes through a few.

    Attributes:
        num_experts: how many blocks.
        top_k: how many of them a token passes through.
        intermediate_size: inner width of each block; None takes the model's.
        normalize: scale the weights of the chosen experts to sum to 1, as Mixtral does.
        bias: keep a bias for each expert that shifts which are chosen and not how they are weighted; see
            `balance_rate` of the language-model objective (arXiv 2408.15664).
        layers: which layers have the mixture, a pattern repeated over the layers; the others keep the dense
            block. None means all of them.

    Raises:
        ValueError: a size below 1, `top_k` above `num_experts`, or a pattern without a true flag.
    """

    num_experts: int
    top_k: int
    intermediate_size: int | None = None
    normalize: bool = True
    bias: bool = False
    layers: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_experts", "top_k", "intermediate_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"mixture {name}={size} must be at least 1")
        if self.top_k > self.num_experts:
            raise ValueError(
                f"mixture top_k={self.top_k} is above num_experts={self.num_experts}; "
                f"use at most {self.num_experts}"
            )
        if self.layers is not None and not any(self.layers):
            raise ValueError(
                f"mixture layers={self.layers!r} puts experts in no layer; "
                "leave it unset to put them in all, or leave the mixture out"
            )

    def at(self, layer: int) -> bool:
        """Whether the layer of this index has the mixture."""
        return self.layers is None or self.layers[layer % len(self.layers)]
