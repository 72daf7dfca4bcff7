"""PSNR and SSIM: scikit-image's values, the paper's form, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from skimage import data
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from dew.artifacts import ImageGrid
from dew.eval.images import PSNR, SSIM
from dew.registry import metrics
from dew.testing import MetricContract


def drawn(rows: int, seed: int, channels: int = 3) -> ImageGrid:
    draw = np.random.default_rng(seed)
    references = draw.uniform(-1, 1, (rows, 16, 13, channels))
    images = np.clip(references + draw.normal(0, 0.3, references.shape), -1, 1)
    return ImageGrid(images=images, references=references)


def camera() -> tuple[np.ndarray, np.ndarray]:
    """A photograph, and the same ten steps brighter."""
    picture = data.camera().astype(np.float64)
    return picture, np.clip(picture + 10, 0, 255)


def pair(first: np.ndarray, second: np.ndarray) -> ImageGrid:
    return ImageGrid(images=second[None, :, :, None], references=first[None, :, :, None])


def value(metric, grid: ImageGrid) -> float:
    return metric.finalize(metric(grid))


def by_image(score, grids) -> float:
    pairs = [each for grid in grids for each in zip(grid.references, grid.images, strict=True)]
    return float(np.mean([score(reference, image) for reference, image in pairs]))


class TestPSNR(MetricContract):
    def metric(self):
        return metrics.psnr()

    def artifacts(self):
        return [drawn(rows, rows) for rows in (3, 1, 4)]

    def expected(self):
        return by_image(lambda one, two: peak_signal_noise_ratio(one, two, data_range=2), self.artifacts())


class TestSSIM(MetricContract):
    tolerance = 1e-9

    def metric(self):
        return metrics["ssim"]()

    def artifacts(self):
        return [drawn(rows, rows) for rows in (3, 1, 4)]

    def expected(self):
        options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
        return by_image(
            lambda one, two: structural_similarity(one, two, data_range=2, channel_axis=-1, **options),
            self.artifacts(),
        )


class TestUniformSSIM(TestSSIM):
    def metric(self):
        return SSIM(window="uniform")

    def expected(self):
        return by_image(
            lambda one, two: structural_similarity(one, two, data_range=2, channel_axis=-1), self.artifacts()
        )


def test_error_of_one_byte_step_has_the_known_ratio():
    black = np.zeros((8, 8))
    for scale, data_range in ((1 / 255, 1), (1, 255), (2 / 255, 2)):
        assert value(PSNR(data_range=data_range), pair(black, black + scale)) == pytest.approx(
            48.1308036, abs=1e-6
        )


def test_wrong_range_moves_the_ratio_by_six_decibels():
    black = np.zeros((8, 8))
    assert value(PSNR(data_range=1), pair(black, black + 2 / 255)) == pytest.approx(42.1102037, abs=1e-6)


def test_photograph_has_the_known_scores():
    grid = pair(*camera())
    assert value(PSNR(data_range=255), grid) == pytest.approx(28.146307, abs=1e-6)
    assert value(SSIM(data_range=255), grid) == pytest.approx(0.97111225, abs=1e-8)
    assert value(SSIM(data_range=255, window="uniform"), grid) == pytest.approx(0.97234846, abs=1e-8)


def test_constants_have_the_closed_form():
    """Without variance only the means' term is left: `(2ab + c1) / (a^2 + b^2 + c1)`."""
    for low, high, expected in ((0.0, 1.0, 9.9990e-5), (0.25, 0.75, 0.60006399)):
        grid = pair(np.full((12, 12), low), np.full((12, 12), high))
        assert value(SSIM(data_range=1), grid) == pytest.approx(expected, rel=1e-5)


def test_an_image_equal_to_its_reference_is_infinite_and_one():
    grid = pair(*(camera()[0],) * 2)
    assert value(PSNR(data_range=255), grid) == np.inf
    assert value(SSIM(data_range=255), grid) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PSNR()(ImageGrid(images=np.zeros((1, 8, 8, 1)))), "has none"),
        (lambda: PSNR()(pair(np.zeros((8, 8)), np.zeros((8, 9)))), r"\(1, 8, 9, 1\)"),
        (lambda: SSIM()(pair(np.zeros((8, 8)), np.zeros((8, 8)))), "window='uniform'"),
        (lambda: SSIM(window="box"), "window='box'"),
        (lambda: PSNR(data_range=0), "data_range=0"),
    ],
)
def test_refusals_name_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()
