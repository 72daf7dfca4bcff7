"""Structural similarity (Wang et al., 2004, "Image quality assessment: from error visibility to structural
similarity")."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from dew.eval.images.pairs import Images, PairedMetric, Scores

type Taps = Float[np.ndarray, " K"]

K1, K2 = 0.01, 0.03
SIGMA, RADIUS = 1.5, 5
UNIFORM = 7


class SSIM(PairedMetric):
    """`(2 mx my + c1)(2 vxy + c2) / ((mx^2 + my^2 + c1)(vx + vy + c2))` averaged over windows and channels.

    Means `m` and covariances `v` are taken in a window around each pixel whose window lies inside the image;
    `c1 = (0.01 L)^2`, `c2 = (0.03 L)^2` with `L` the data range (equation 13).

    Args:
        data_range: see `PairedMetric`.
        window: `"gaussian"` is the paper's 11x11 of standard deviation 1.5 with population covariance;
            `"uniform"` the 7x7 with sample covariance that scikit-image takes by default, for images that
            the other does not fit in.

    Raises:
        ValueError: an unknown window.
    """

    name = "ssim"

    def __init__(
        self, *, data_range: float = 2.0, window: Literal["gaussian", "uniform"] = "gaussian"
    ) -> None:
        super().__init__(data_range=data_range)
        if window not in ("gaussian", "uniform"):
            raise ValueError(f"window={window!r} must be 'gaussian' or 'uniform'")
        self.window = window

    def check_sides(self, height: int, width: int) -> None:
        side = 2 * RADIUS + 1 if self.window == "gaussian" else UNIFORM
        if min(height, width) < side:
            raise ValueError(
                f"ssim: images of {height}x{width} do not hold its window of {side}x{side}; "
                "SSIM(window='uniform') takes 7x7, psnr takes any size"
            )

    def scores(self, images: Images, references: Images) -> Scores:
        self.check_sides(images.shape[1], images.shape[2])
        taps = gaussian_taps() if self.window == "gaussian" else np.full(UNIFORM, 1 / UNIFORM)
        unbiased = UNIFORM**2 / (UNIFORM**2 - 1) if self.window == "uniform" else 1.0
        mean_x, mean_y = windowed(images, taps), windowed(references, taps)
        var_x = unbiased * (windowed(images * images, taps) - mean_x * mean_x)
        var_y = unbiased * (windowed(references * references, taps) - mean_y * mean_y)
        covariance = unbiased * (windowed(images * references, taps) - mean_x * mean_y)
        c1, c2 = (K1 * self.data_range) ** 2, (K2 * self.data_range) ** 2
        luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
        structure = (2 * covariance + c2) / (var_x + var_y + c2)
        return np.mean(luminance * structure, axis=(1, 2, 3))


def gaussian_taps() -> Taps:
    """The paper's window along one axis."""
    offsets = np.arange(-RADIUS, RADIUS + 1)
    taps = np.exp(-(offsets**2) / (2 * SIGMA**2))
    return taps / taps.sum()


def windowed(images: Images, taps: Taps) -> Images:
    """The weighted mean in each window that lies inside the image, the window the product of `taps` along
    both axes."""
    for axis in (1, 2):
        images = np.lib.stride_tricks.sliding_window_view(images, len(taps), axis=axis) @ taps
    return images
