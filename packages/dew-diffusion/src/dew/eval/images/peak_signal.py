"""Peak signal-to-noise ratio."""

from __future__ import annotations

import numpy as np

from dew.eval.images.pairs import Images, PairedMetric, Scores


class PSNR(PairedMetric):
    """`10 log10(data_range^2 / MSE)` in decibels of each image, averaged over the images.

    The mean of ratios, not the ratio of a mean: equal to scikit-image's `peak_signal_noise_ratio` image by
    image. An image that equals its reference scores infinity, and so does a pass that holds one.
    """

    name = "psnr"

    def scores(self, images: Images, references: Images) -> Scores:
        error = np.mean((images - references) ** 2, axis=(1, 2, 3))
        with np.errstate(divide="ignore"):
            return 10 * np.log10(self.data_range**2 / error)
