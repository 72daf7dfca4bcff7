"""Images that packages ship: their values, their splits and what validation reads of them."""

from __future__ import annotations

import sys
from contextlib import closing

import numpy as np
import pytest

from dew.data import DataPartition, Digits, MNIST5k, OxfordFlowers, Textures
from dew.data.images.records import class_by_class
from dew.testing import DatasetContract


def whole(spec, split):
    records = spec.records(split)
    rows = [records[index] for index in range(len(records))]
    return np.stack([row["image"] for row in rows]), np.array([row["label"] for row in rows])


def validation(dataset):
    with closing(dataset.val(DataPartition())) as batches:
        return np.concatenate([batch["image"] for batch in batches])


class TestDigits(DatasetContract):
    def spec(self):
        return Digits()


class TestMNIST(DatasetContract):
    def spec(self):
        return MNIST5k(image_size=32, val_split=None, val_batches=2)


class TestTextures(DatasetContract):
    def spec(self):
        return Textures()


def test_digits_are_scikit_learns_over_sixteen():
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = whole(Digits(), "test")
    np.testing.assert_allclose(images[..., 0] / 255 * 16, data.images[::5], atol=0.5 * 16 / 255)
    np.testing.assert_array_equal(labels, data.target[::5])


@pytest.mark.parametrize(("spec", "score"), [(Digits(), 0.9861), (MNIST5k(), 0.934)], ids=["digits", "mnist"])
def test_nearest_neighbours_reach_the_known_score(spec, score):
    """Five neighbours over raw pixels: a wrong split, order or label moves it."""
    from sklearn.neighbors import KNeighborsClassifier

    (images, labels), (held_out, truth) = whole(spec, "train"), whole(spec, "test")
    model = KNeighborsClassifier(5).fit(images.reshape(len(images), -1), labels)
    assert model.score(held_out.reshape(len(held_out), -1), truth) == pytest.approx(score, abs=5e-5)


def test_mnist_pixels_have_the_known_deviation():
    images, labels = whole(MNIST5k(), "train")
    assert np.std(images / 255) == pytest.approx(0.3085, abs=5e-4)
    assert np.bincount(labels).tolist() == [400] * 10


def test_mnist_enlarged_keeps_the_digit_in_a_black_border():
    small, large = (whole(MNIST5k(image_size=size), "test")[0] for size in (28, 32))
    np.testing.assert_array_equal(large[:, 2:30, 2:30], small)
    assert large.sum() == small.sum()


def test_mnist_made_smaller_keeps_its_mean():
    small, large = (whole(MNIST5k(image_size=size), "test")[0] for size in (14, 28))
    assert small.shape[1:] == (14, 14, 1)
    # Bicubic weights are negative beside a stroke, and black stays black there: the mean rises a little.
    assert small.mean() == pytest.approx(large.mean(), rel=0.04)


def test_texture_splits_share_no_pixel_column():
    """The pieces of the left and right halves, before they are standardised."""
    from dew.data.images.packaged import pieces

    columns = np.broadcast_to((np.arange(512) % 256).astype(np.uint8), (512, 512))
    halves = np.where(np.arange(512) < 256, 0, 1).astype(np.uint8) * np.ones((512, 1), np.uint8)
    assert not pieces(halves, "train", 32).any() and pieces(halves, "test", 32).all()
    assert {pieces(columns, split, 32).max() for split in ("train", "test")} == {255}
    assert [len(pieces(columns, split, 32)) for split in ("train", "test")] == [400, 200]


def test_texture_brightness_says_nothing_of_the_class():
    images, labels = whole(Textures(), "train")
    means = images.mean(axis=(1, 2, 3))
    assert abs(np.array([means[labels == label].mean() for label in range(3)]) - 127.5).max() < 1.5
    assert np.median(np.std(images, axis=(1, 2, 3))) == pytest.approx(42.5, rel=0.02)


def test_classes_take_turns():
    assert class_by_class([2, 2, 0, 1, 0, 2]).tolist() == [2, 3, 0, 4, 1, 5]
    assert whole(MNIST5k(), "test")[1][:20].tolist() == [*range(10)] * 2


def test_validation_reads_every_row_of_its_split_in_order():
    np.testing.assert_array_equal(validation(Digits().load(batch=64)), whole(Digits(), "test")[0])


def test_validation_is_bounded_by_its_batches():
    assert len(validation(Digits(val_batches=2).load(batch=16))) == 32
    assert Digits(val_batches=0).load(batch=16).val is None


def test_without_a_split_the_head_of_the_training_images_is_held_out():
    dataset = Digits(val_split=None, val_batches=3).load(batch=10)
    np.testing.assert_array_equal(validation(dataset), whole(Digits(), "train")[0][:30])
    assert dataset.records == 1437 - 30
    held_out = {image.tobytes() for image in validation(dataset)}
    with closing(dataset.train(DataPartition())) as batches:
        seen = {image.tobytes() for _ in range(141) for image in next(batches)["image"]}
    assert len(seen) > 1300 and not seen & held_out


def test_epochs_have_another_order():
    with closing(Digits().load(batch=1437).train(DataPartition())) as batches:
        first, second = (next(batches)["label"] for _ in range(2))
    assert sorted(first) == sorted(second) and not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Digits(val_split="valid"), r"val_split='valid' is no split of Digits; use test"),
        (lambda: Digits(image_size=0), r"image_size=0"),
        (lambda: Textures(image_size=300), r"2\.\.256"),
        (lambda: Digits(val_batches=-1), r"val_batches=-1"),
        (lambda: Digits(val_split=None, val_batches=200).load(batch=8), r"1600 of 1437"),
        (lambda: OxfordFlowers().load(batch=8), r"data\.path is unset"),
    ],
)
def test_refusals_name_the_field(make, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        make()


def test_a_tokenizer_is_refused():
    with pytest.raises(TypeError, match="without text"):
        Digits().load(batch=8, tokenize=object())


def test_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        Digits().load(batch=8)


def test_shape_and_classes_are_known_before_loading():
    assert Digits().image_shape == (8, 8, 1) and Digits().num_classes == 10
    assert Textures().class_names == ("brick", "grass", "gravel")
    assert OxfordFlowers().image_shape == (64, 64, 3) and OxfordFlowers().num_classes == 102
