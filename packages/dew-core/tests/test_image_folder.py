"""Folders of pictures: which files, labels and splits, and what is refused before training."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dew.data import DataPartition, ImageFolder, OxfordFlowers
from dew.data.images.folder import list_images, matches
from dew.failure import StatedFailure
from dew.testing import DatasetContract


def paint(path: Path, color: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def folder(root: Path, count: int = 12, names: tuple[str, ...] = ("cat", "dog")) -> str:
    for index in range(count):
        paint(root / names[index % len(names)] / f"{index:03d}.png", (index, 2 * index, 255 - index))
    return str(root)


def rows(spec: ImageFolder, split: str) -> list[dict]:
    records = spec.records(split)
    return [records[index] for index in range(len(records))]


class TestImageFolder(DatasetContract):
    @pytest.fixture(autouse=True)
    def pictures(self, tmp_path):
        self.path = folder(tmp_path, 16)

    def spec(self):
        return ImageFolder(path=self.path, image_size=8, val_fraction=0.2)


def test_sub_folders_are_the_classes_in_order(tmp_path):
    spec = ImageFolder(path=folder(tmp_path), image_size=4, val_split=None)
    assert spec.class_names == ("cat", "dog") and spec.num_classes == 2
    assert {(int(row["label"]), int(row["image"][0, 0, 0]) % 2) for row in rows(spec, "train")} == {
        (0, 0),
        (1, 1),
    }


def test_flat_folder_has_no_labels(tmp_path):
    for index in range(4):
        paint(tmp_path / f"{index}.png")
    spec = ImageFolder(path=str(tmp_path), image_size=4)
    assert spec.num_classes is None
    with closing(spec.load(batch=2).train(DataPartition())) as batches:
        assert list(next(batches)) == ["image"]


def test_image_beside_class_folders_is_refused_unless_labels_are_off(tmp_path):
    folder(tmp_path)
    paint(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"stray\.png lies beside the folders cat, dog"):
        ImageFolder(path=str(tmp_path)).load(batch=2)
    assert ImageFolder(path=str(tmp_path), labelled=False).num_classes is None


def test_labels_of_a_folder_without_sub_folders_are_refused(tmp_path):
    paint(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"data.labelled=True .* stray\.png lies in none"):
        ImageFolder(path=str(tmp_path), labelled=True).load(batch=2)


def test_a_new_file_moves_no_other_between_the_splits(tmp_path):
    spec = ImageFolder(path=folder(tmp_path, 60), val_fraction=0.3, image_size=4)
    before = {file.name for file in spec.records("held_out")._files}
    paint(tmp_path / "cat" / "new.png")
    after = {file.name for file in spec.records("held_out")._files}
    assert after - {"cat/new.png"} == before
    assert 0.15 < len(before) / 60 < 0.45


def test_order_follows_from_the_names_alone(tmp_path):
    spec = ImageFolder(path=folder(tmp_path / "one", 12), image_size=4)
    for index in reversed(range(12)):
        paint(tmp_path / "two" / ("cat", "dog")[index % 2] / f"{index:03d}.png")
    other = ImageFolder(path=str(tmp_path / "two"), image_size=4)
    for split in ("train", "held_out"):
        names = [[file.name for file in each.records(split)._files] for each in (spec, other)]
        assert names[0] == names[1]


def test_splits_are_disjoint_and_complete(tmp_path):
    spec = ImageFolder(path=folder(tmp_path, 30), val_fraction=0.3, image_size=4)
    train, held_out = ({file.name for file in spec.records(each)._files} for each in ("train", "held_out"))
    assert not train & held_out and len(train | held_out) == 30


def test_two_images_make_both_splits(tmp_path):
    spec = ImageFolder(path=folder(tmp_path, 2, ("one",)), image_size=4)
    assert [len(spec.records(split)) for split in ("train", "held_out")] == [1, 1]


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("a/b/c.png", "**/*", True),
        ("c.png", "**/*.png", True),
        ("a/c.png", "*.png", False),
        ("a/c.png", "a/*", True),
        ("b/c.png", "a/**", False),
        ("a/b/c.png", "a/**", True),
    ],
)
def test_glob_matches_part_by_part(name, pattern, expected):
    assert matches(name.split("/"), pattern.split("/")) is expected


def test_hidden_files_and_other_suffixes_are_passed_over(tmp_path):
    folder(tmp_path, 2)
    paint(tmp_path / ".cache" / "x.png")
    paint(tmp_path / "cat" / ".y.png")
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    assert [file.name for file in list_images(str(tmp_path), "**/*")] == ["cat/000.png", "dog/001.png"]


def test_links_are_followed_and_a_loop_is_refused(tmp_path):
    folder(tmp_path / "far", 2)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "cat")
    assert [file.name for file in list_images(str(tmp_path / "near"), "**/*")] == ["link/000.png"]
    (tmp_path / "far" / "cat" / "up").symlink_to(tmp_path / "near")
    with pytest.raises(ValueError, match=r"up is a link to a folder that holds it"):
        list_images(str(tmp_path / "near"), "**/*")


def damaged(root: Path, name: str, data: bytes) -> str:
    folder(root, 8)
    (root / "cat" / name).write_bytes(data)
    return str(root)


def jpeg(root: Path) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(root / "whole.jpg")
    data = (root / "whole.jpg").read_bytes()
    (root / "whole.jpg").unlink()
    return data


def test_every_unusable_file_is_named_before_training(tmp_path):
    path = damaged(tmp_path, "bad.png", b"no image at all")
    (tmp_path / "dog" / "empty.jpg").touch()
    (tmp_path / "dog" / "cut.jpg").write_bytes(jpeg(tmp_path)[:-400])
    (tmp_path / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match="4 of 12 images cannot be used") as caught:
        ImageFolder(path=path).load(batch=2)
    for said in (
        "bad.png is no image",
        "empty.jpg is empty",
        "cut.jpg is cut off",
        "gone.png is not there",
        "data.glob",
    ):
        assert said in str(caught.value)


def test_damage_that_shows_in_decoding_names_the_file(tmp_path):
    data = bytearray(paint(tmp_path / "source.png", size=(300, 300)).read_bytes())
    (tmp_path / "source.png").unlink()
    at = data.index(b"IDAT") + 8
    data[at : at + 20] = bytes(20)
    path = damaged(tmp_path, "torn.png", bytes(data))
    with pytest.raises(StatedFailure, match=r"torn\.png is damaged .*; replace it"):
        rows(ImageFolder(path=path, val_split=None), "train")


def test_file_that_claims_too_many_pixels_is_refused_unread(tmp_path):
    header = b"P5\n40000 40000\n255\n"
    with pytest.raises(ValueError, match=r"bomb\.pgm (claims|has)"):
        ImageFolder(path=damaged(tmp_path, "bomb.pgm", header)).load(batch=2)


def test_nothing_to_read_says_what_counts(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not there"):
        ImageFolder(path=str(tmp_path / "nowhere")).load(batch=2)
    with pytest.raises(FileNotFoundError, match=r"holds no image .*\.png"):
        ImageFolder(path=str(tmp_path)).load(batch=2)
    with pytest.raises(ValueError, match=r"is a file; name the folder"):
        ImageFolder(path=str(paint(tmp_path / "one.png"))).load(batch=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("closed", ["cat", "cat/000.png"])
def test_what_may_not_be_read_is_named(tmp_path, closed):
    path = folder(tmp_path, 4)
    (tmp_path / closed).chmod(0)
    try:
        with pytest.raises(PermissionError, match=closed):
            ImageFolder(path=path).load(batch=2)
    finally:
        (tmp_path / closed).chmod(0o700)


def test_changed_picture_changes_the_fingerprint(tmp_path):
    spec = ImageFolder(path=folder(tmp_path, 6), val_split=None, image_size=4)
    with closing(spec.load(batch=2).train(DataPartition())) as batches:
        next(batches)
        position = batches.get_state()
    paint(tmp_path / "cat" / "000.png", (9, 9, 9))
    with (
        closing(spec.load(batch=2).train(DataPartition())) as batches,
        pytest.raises(ValueError, match="images was"),
    ):
        batches.set_state(position)


def test_flowers_read_the_published_splits(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    for number in range(1, 7):
        paint(tmp_path / "jpg" / f"image_{number:05d}.jpg", (40 * number, 0, 0))
    scipy_io.savemat(tmp_path / "imagelabels.mat", {"labels": np.array([[102, 1, 102, 1, 2, 2]])})
    scipy_io.savemat(tmp_path / "setid.mat", {"trnid": [[1, 3, 4]], "valid": [[2, 5]], "tstid": [[6]]})
    spec = OxfordFlowers(path=str(tmp_path), image_size=4)
    records = spec.records("train")
    assert [int(records[index]["label"]) for index in range(3)] == [0, 101, 101]
    assert [round(records[index]["image"].mean(axis=(0, 1))[0] / 40) for index in range(3)] == [4, 1, 3]
    assert [len(spec.records(split)) for split in ("valid", "test")] == [2, 1]


def test_incomplete_flowers_name_what_is_missing(tmp_path):
    (tmp_path / "jpg").mkdir()
    with pytest.raises(FileNotFoundError, match=r"lacks imagelabels\.mat, setid\.mat; download .*https"):
        OxfordFlowers(path=str(tmp_path)).load(batch=2)
