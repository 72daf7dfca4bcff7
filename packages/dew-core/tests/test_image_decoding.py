"""One file to bytes: rotation, transparency, inks, depth, palettes, and the resize's antialiasing."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dew.data.images.decoding import UnusableImage, check_header, decode_image, resize


def saved(tmp_path, image, name="image.png", **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def quarters() -> np.ndarray:
    """Red, green over blue, white."""
    colors = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    return colors.repeat(8, axis=0).repeat(8, axis=1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, orientation):
    """Each orientation stores the picture so that its tag brings it upright."""
    upright = quarters()
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    np.testing.assert_array_equal(decode_image(path, size=16), upright)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_transparency_lies_on_white(tmp_path, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    options = {}
    if mode in ("RGBA", "LA"):
        image = image.convert(mode)
    elif mode == "P":
        image = Image.new("P", (4, 4), 3)
        image.putpalette([0] * 768)
        options = {"transparency": 3}
    else:
        image, options = Image.new("RGB", (4, 4), (1, 2, 3)), {"transparency": (1, 2, 3)}
    assert (decode_image(saved(tmp_path, image, **options), size=4) == 255).all()


def test_half_transparency_mixes_with_white(tmp_path):
    pixels = decode_image(saved(tmp_path, Image.new("RGBA", (4, 4), (0, 100, 200, 51))), size=4)
    np.testing.assert_allclose(pixels[0, 0], [204, 224, 244], atol=1)


def test_sixteen_bits_are_divided_by_257(tmp_path):
    wide = np.array([[0, 385], [65535, 386]], np.uint16).repeat(4, 0).repeat(4, 1)
    pixels = decode_image(saved(tmp_path, Image.fromarray(wide)), size=8, channels=1)
    assert pixels[::4, ::4, 0].tolist() == [[0, 1], [255, 2]]


def test_sixteen_bits_that_stand_for_transparency_lie_on_white(tmp_path):
    wide = np.array([[0, 385]], np.uint16).repeat(4, 0).repeat(2, 1)
    path = tmp_path / "image.png"
    Image.fromarray(wide).save(path, transparency=385)
    assert decode_image(path, size=4, channels=1)[0, :, 0].tolist() == [0, 0, 255, 255]


def test_inks_become_rgb(tmp_path):
    path = saved(tmp_path, Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "image.tif")
    assert decode_image(path, size=8)[0, 0].tolist() == [255, 0, 0]


def test_palette_and_one_bit_are_read(tmp_path):
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30] + [0] * 762)
    assert decode_image(saved(tmp_path, palette), size=4)[0, 0].tolist() == [10, 20, 30]
    assert (decode_image(saved(tmp_path, Image.new("1", (4, 4), 1)), size=4) == 255).all()


def test_grey_is_one_channel_by_the_luma_weights(tmp_path):
    pixels = decode_image(saved(tmp_path, Image.new("RGB", (4, 4), (255, 0, 0))), size=4, channels=1)
    assert pixels.shape == (4, 4, 1) and (pixels == round(255 * 0.299)).all()


def test_the_middle_square_is_kept(tmp_path):
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 255
    assert (decode_image(saved(tmp_path, Image.fromarray(wide)), size=8) == 255).all()


def test_making_smaller_averages_in_place_of_picking():
    board = (np.indices((598, 598)).sum(0) % 2 * 255).astype(np.uint8)[..., None]
    pixels = resize(board, 299)
    assert pixels.mean() == pytest.approx(128, abs=0.5) and pixels.std() < 0.1


@pytest.mark.parametrize(
    ("image", "name", "options", "message"),
    [
        (Image.new("F", (4, 4)), "a.tif", {}, "mode F"),
        (Image.new("I", (4, 4)), "a.tif", {}, "mode I"),
        (Image.new("L", (4, 400)), "a.png", {}, "one side over 64 times"),
        (
            Image.new("L", (4, 4)),
            "a.gif",
            {"save_all": True, "append_images": [Image.new("L", (4, 4), 255)]},
            "frames",
        ),
    ],
)
def test_what_has_no_one_meaning_is_refused(tmp_path, image, name, options, message):
    with pytest.raises(UnusableImage, match=message):
        check_header(saved(tmp_path, image, name, **options))
