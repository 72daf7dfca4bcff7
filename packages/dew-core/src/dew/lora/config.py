"""A low-rank adapter as a plain record (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoRA:
    """Low-rank deltas `alpha / rank * B A` on chosen modules.

    Attributes:
        targets: globs over module paths under `params`, as in `layers_*/self_attn/q_proj`.
        rank: inner width of a delta.
        alpha: numerator of its scale.

    Raises:
        ValueError: no target, or a rank below 1.
    """

    targets: tuple[str, ...]
    rank: int = 8
    alpha: float = 16.0

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError("lora.targets=() must name at least one module, as in layers_*/self_attn/q_proj")
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} must be at least 1")
