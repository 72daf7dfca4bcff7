"""A low-rank adapter as a plain record (LoRA, arXiv 2106.09685; rank-stabilized scale, arXiv 2312.03732)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePosixPath

from dew.nn.ranges import check_positive

LORA_A, LORA_B = "lora_a", "lora_b"
"""The names of a module's factors: A is [in, rank], B is [rank, out]."""


@dataclass(frozen=True)
class LoRA:
    """Low-rank deltas on chosen modules: `y = x W + scale * dropout(x) A B`, where A and B alone are trained.

    Attributes:
        targets: patterns of module paths under `params`. A pattern is compared part by part from the end of
            the path, `*` standing for anything within a part: `q_proj`, `self_attn/*` and
            `layers_*/self_attn/q_proj` all name query projections. One that begins with `/` is compared with
            the whole path.
        rank: inner width of a delta; above the smaller side of a kernel it adds parameters and no freedom.
        alpha: numerator of the scale.
        rslora: divide by the root of the rank: `scale` is `alpha / sqrt(rank)`, and otherwise `alpha / rank`.
        dropout: fraction of a delta's inputs that training drops, where the objective trains with dropout.

    Raises:
        TypeError: an alpha that is no number.
        ValueError: no target or an empty one, a rank below 1, an alpha that is not finite and above 0, or a
            dropout outside [0, 1).
    """

    targets: tuple[str, ...]
    rank: int = 8
    alpha: float = 16.0
    rslora: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.targets or not all(target.strip("/") for target in self.targets):
            raise ValueError(
                f"lora.targets={self.targets!r} must name at least one module, as in "
                "layers_*/self_attn/q_proj"
            )
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} must be at least 1")
        check_positive("lora.alpha", self.alpha)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout={self.dropout} must lie in [0, 1)")

    @property
    def scale(self) -> float:
        """What a delta `A B` is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def adapts(self, module: str) -> bool:
        """Whether a target names the module at this path under `params`, parts joined by `/`."""
        return any(PurePosixPath(f"/{module}").match(target) for target in self.targets)

    def trainable(self, path: tuple[str, ...]) -> bool:
        """Whether a leaf of the variables is a factor: the leaves that an adapter's training moves."""
        return path[-1] in (LORA_A, LORA_B)
