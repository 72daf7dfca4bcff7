"""The images of an artifact beside their references, and the mean of a score over a pass."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float

from dew.artifacts import ImageGrid
from dew.objectives.base import mean_of_totals, merge_totals

type Images = Float[np.ndarray, "N H W C"]
type Scores = Float[np.ndarray, " N"]


class PairedMetric(ABC):
    """The mean over all images of a pass of one score each; batches weigh by their images.

    Args:
        data_range: distance between the smallest and the largest value a pixel can have; 2 for the [-1, 1]
            of an `ImageGrid`.

    Raises:
        ValueError: a range that is not a positive number.
    """

    name: str
    higher_is_better = True
    reads = ImageGrid

    def __init__(self, *, data_range: float = 2.0) -> None:
        if not (data_range > 0 and math.isfinite(data_range)):
            raise ValueError(f"data_range={data_range} must be a positive number; 2 fits values in [-1, 1]")
        self.data_range = data_range

    def check_sides(self, height: int, width: int) -> None:
        """Refuse images of a size that cannot be scored; a run calls it before it trains.

        Raises:
            ValueError: the size is too small.
        """
        if min(height, width) < 1:
            raise ValueError(f"{self.name}: images of {height}x{width} hold no pixel")

    @abstractmethod
    def scores(self, images: Images, references: Images) -> Scores:
        """One score an image, in float64."""

    def __call__(self, artifact: ImageGrid, /) -> tuple[float, float]:
        """The summed scores and the number of images of one batch.

        Raises:
            ValueError: no references, or references of another shape.
        """
        if artifact.references is None:
            raise ValueError(f"{self.name} compares images with references, and this ImageGrid has none")
        images = np.asarray(artifact.images, np.float64)
        references = np.asarray(artifact.references, np.float64)
        if images.shape != references.shape or images.ndim != 4:
            raise ValueError(
                f"{self.name}: images {images.shape} and references {references.shape} must both be the same "
                "[N, H, W, C]"
            )
        return float(self.scores(images, references).sum()), float(len(images))

    @staticmethod
    def merge(accumulated: tuple[float, float], contribution: tuple[float, float], /) -> tuple[float, float]:
        """Add totals and counts."""
        return merge_totals(accumulated, contribution)

    @staticmethod
    def finalize(accumulated: tuple[float, float], /) -> float:
        """The mean.

        Raises:
            ValueError: the pass held no image.
        """
        return mean_of_totals(accumulated)
