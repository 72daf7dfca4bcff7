"""One image file as bytes `[H, W, C]`, with Pillow.

The rotation in its Exif, its palette and its inks are followed; what would need a guess is refused.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from dew.failure import StatedFailure

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

type Image = UInt8[np.ndarray, "H W C"]

MOST_PIXELS = 100_000_000
"""Pixels of one file; a few kilobytes can claim more than memory holds."""
MOST_STRETCH = 64
"""How many times longer one side may be than the other."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
PLAIN = ("1", "L", "P", "RGB", "CMYK", "YCbCr", *TRANSPARENT, *SIXTEEN_BITS)
"""Pillow's modes that have one meaning as grey or RGB bytes."""


class UnusableImage(StatedFailure, ValueError):
    """A file that cannot be trained on. The message says why, without the file's name."""


def pillow(name: str = "Image") -> ModuleType:
    """Import a module of Pillow.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return __import__(f"PIL.{name}", fromlist=[name])
    except ModuleNotFoundError as error:
        raise ImportError("images need Pillow: pip install 'dew-core[images]'", name="PIL") from error


def check_header(path: Path) -> None:
    """Refuse what the first bytes of a file, and its end, show to be unusable; no pixel is decoded.

    Raises:
        UnusableImage: it is no image, of a kind below, too large, or cut off.
        PermissionError: it may not be read.
    """
    with opened(path) as image:
        refuse_unusable(image)
        refuse_cut_off(path, image.format or "")


def decode_image(path: Path, *, size: int, channels: int = 3) -> Image:
    """The file's image: upright, resized over its shorter side with antialiasing, cut to its middle square.

    Transparency lies on white; CMYK becomes RGB by Pillow's formula; 16-bit grey is divided by 257, and of
    16-bit colours the high byte is kept. Colour profiles are not applied.

    Args:
        path: the file.
        size: height and width of the result.
        channels: 3 for RGB, 1 for grey.

    Raises:
        UnusableImage: see `check_header`, or damage that shows only in decoding.
        PermissionError: it may not be read.
    """
    with opened(path) as image:
        refuse_unusable(image)
        try:
            image.load()
        except (OSError, SyntaxError, ValueError, IndexError, EOFError) as error:
            raise UnusableImage(f"is damaged ({error})") from error
        upright = pillow("ImageOps").exif_transpose(image)
        return fitted(in_bytes(upright, "L" if channels == 1 else "RGB"), size)


def resize(image: Image, size: int) -> Image:
    """A grey or RGB image at `[size, size]`, bicubic with antialiasing."""
    picture = pillow().fromarray(image[..., 0] if image.shape[2] == 1 else image)
    return fitted(picture, size)


def opened(path: Path) -> PillowImage:
    """The file with its header read.

    Raises:
        UnusableImage: Pillow does not know it as an image.
        PermissionError: it may not be read.
    """
    module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", module.DecompressionBombWarning)
            return module.open(path)
    except PermissionError as error:
        raise PermissionError(f"{path} may not be read by this user; change its permissions") from error
    except FileNotFoundError as error:
        raise UnusableImage("is not there any more, or is a link to nothing") from error
    except module.DecompressionBombError as error:
        raise UnusableImage(f"claims more than {MOST_PIXELS:,} pixels") from error
    except (module.UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        fault = "is no image that Pillow knows, or is damaged" if path.stat().st_size else "is empty"
        raise UnusableImage(fault) from error


def refuse_unusable(image: PillowImage) -> None:
    """Refuse what the header shows.

    Raises:
        UnusableImage: several frames, too many pixels, an extreme shape, or pixels without one meaning.
    """
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise UnusableImage(f"has {width}x{height} pixels, over {MOST_PIXELS:,}")
    if max(width, height) > MOST_STRETCH * min(width, height):
        raise UnusableImage(f"has {width}x{height} pixels, one side over {MOST_STRETCH} times the other")
    if getattr(image, "is_animated", False):
        raise UnusableImage("holds several frames; save one of them as a file")
    if image.mode not in PLAIN:
        raise UnusableImage(
            f"has pixels of mode {image.mode}, whose range is not fixed; save it as 8-bit RGB"
        )


def refuse_cut_off(path: Path, kind: str) -> None:
    """Refuse a JPEG or PNG whose end is missing.

    Raises:
        UnusableImage: no end marker in its last 64 KiB.
    """
    marker = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}.get(kind)
    if marker is None:
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        if marker not in file.read():
            raise UnusableImage("is cut off: its end is missing")


def in_bytes(image: PillowImage, mode: str) -> PillowImage:
    """`image` as `mode`, `"L"` or `"RGB"`."""
    if image.mode in SIXTEEN_BITS:
        wide = np.asarray(image).astype(np.uint32)
        narrow = ((wide + 128) // 257).astype(np.uint8)
        if "transparency" in image.info:
            narrow[wide == image.info["transparency"]] = 255
        image = pillow().fromarray(narrow)
    if image.mode in TRANSPARENT or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = pillow().new("RGBA", layer.size, (255, 255, 255, 255))
        image = pillow().alpha_composite(white, layer)
    return image if image.mode == mode else image.convert("RGB").convert(mode)


def fitted(image: PillowImage, size: int) -> Image:
    """The middle square of `image` at `[size, size]`, in one step of resizing."""
    module = pillow()
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    if (width, height) != (size, size):
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), module.Resampling.BICUBIC, box=box)
    pixels = np.asarray(image, np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels
