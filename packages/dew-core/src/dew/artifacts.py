"""What an objective's evaluation yields, as typed values that metrics score and trackers show.

Importing this module needs no jax: trackers and the report read artifacts after they reached the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import numpy as np

    type Array = jax.Array | np.ndarray


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Teacher-forced scores of token targets.

    Attributes:
        losses: `[B, S]` cross entropy in nats of each target.
        weights: `[B, S]` weight of each target, 0 where it is not counted.
        correct: `[B, S]` booleans, whether the argmax was the target; None when not computed.
    """

    losses: Array
    weights: Array
    correct: Array | None = None


@dataclass(frozen=True, kw_only=True)
class TextSamples:
    """Decoded continuations for display.

    Attributes:
        prompts: one text per row.
        texts: the continuation of each row, without its prompt.
    """

    prompts: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ImageGrid:
    """Images for scoring and display.

    Attributes:
        images: `[N, H, W, C]` in [-1, 1].
        references: `[N, H, W, C]` the real images they are compared with, or None.
        captions: one text per image, or none.
    """

    images: Array
    references: Array | None = None
    captions: Sequence[str] = field(default=())


@dataclass(frozen=True, kw_only=True)
class VideoGrid:
    """Videos for scoring and display.

    Attributes:
        videos: `[N, T, H, W, C]` in [-1, 1].
        frames_per_second: display rate.
        captions: one text per video, or none.
    """

    videos: Array
    frames_per_second: float = 8.0
    captions: Sequence[str] = field(default=())


type Artifacts = Any
"""One artifact or a tuple of them. Third parties add types of their own, so the union stays open."""
