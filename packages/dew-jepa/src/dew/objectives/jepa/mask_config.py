"""How much of an image is hidden, as a plain record. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dew.objectives.jepa.block_sizes import check_bounds

if TYPE_CHECKING:
    from dew.objectives.jepa.masks import MultiBlockMask


@dataclass(frozen=True)
class MultiBlock:
    """Multi-block masks (arXiv 2301.08243, section 3): predict some blocks from the rest of a large one.

    Attributes:
        targets: blocks that are predicted.
        target_scale: bounds of a target block's share of the image.
        target_aspect: bounds of its rows over its columns.
        context_scale: bounds of the context block's share of the image, before the targets are cut out.
        context_aspect: bounds of its rows over its columns.
        context_tokens: patches of context kept at most, chosen evenly among all; None keeps all. It bounds
            what a step computes.

    Raises:
        ValueError: a count below 1, or bounds out of order or out of range.
    """

    targets: int = 4
    target_scale: tuple[float, float] = (0.15, 0.2)
    target_aspect: tuple[float, float] = (0.75, 1.5)
    context_scale: tuple[float, float] = (0.85, 1.0)
    context_aspect: tuple[float, float] = (1.0, 1.0)
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("targets", "context_tokens"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"mask.{name}={value} must be at least 1")
        check_bounds(self.target_scale, self.target_aspect, called="mask.target_")
        check_bounds(self.context_scale, self.context_aspect, called="mask.context_")

    def build(self, grid: tuple[int, int]) -> MultiBlockMask:
        """The sampler over `grid` rows and columns of patches.

        Raises:
            ValueError: the blocks do not fit the grid, or can leave no context.
        """
        from dew.objectives.jepa.masks import MultiBlockMask

        return MultiBlockMask(grid, self)
