"""PNG files (ISO/IEC 15948) of 8-bit images, with the standard library's deflate."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Channels -> the header's colour type: grey, grey and alpha, RGB, RGB and alpha."""
UP = 2
"""The row filter: each byte is stored as its difference from the one above, modulo 256."""


def encode_png(pixels: UInt8[np.ndarray, "H W C"]) -> bytes:
    """The PNG file of an image.

    Raises:
        ValueError: not bytes `[H, W, C]` with one to four channels and at least one pixel.
    """
    import numpy as np

    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in COLOR_TYPES or not pixels.size:
        raise ValueError(
            f"pixels of shape {pixels.shape} and dtype {pixels.dtype} must be uint8 [H, W, C] "
            "with 1 to 4 channels"
        )
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    above = np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])
    filtered = np.concatenate([np.full((height, 1), UP, np.uint8), rows - above], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 6)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk: its length, kind, data and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
