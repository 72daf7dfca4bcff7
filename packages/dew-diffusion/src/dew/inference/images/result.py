"""What an image request yields."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import jax
import numpy as np

from dew.failure import StatedFailure
from dew.telemetry.png import encode_png

WORD = re.compile(r"[^\w.-]+")
LONGEST = 40
"""Characters of a caption in a file's name."""


class DivergedImage(StatedFailure, FloatingPointError):
    """An image whose trajectory left the numbers."""


@dataclass(frozen=True, eq=False)
class Images:
    """Generated images, or latents that were not decoded.

    Attributes:
        images: `[R, H, W, C]`; decoded images lie in [-1, 1].
        rows: how many of them were asked for.
        captions: what each was asked for, or none.
    """

    images: jax.Array | np.ndarray
    rows: int
    captions: tuple[str, ...] = ()

    def host(self) -> Self:
        """The rows that were asked for, on the host."""
        return replace(self, images=np.asarray(self.images)[: self.rows])

    def pixels(self) -> np.ndarray:
        """`[rows, H, W, C]` bytes: `round((x + 1) 127.5)`, clipped; 0 is 128.

        Raises:
            DivergedImage: an image that is not finite.
        """
        values = np.asarray(self.host().images, np.float64)
        broken = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
        if broken.size:
            raise DivergedImage(
                f"image {broken[0]} of {self.rows} is not finite; its trajectory diverged, so use more steps "
                "or less guidance"
            )
        return np.clip((values + 1) * 127.5, 0, 255).round().astype(np.uint8)

    def save(self, directory: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write every image as `NUMBER-CAPTION.png` into `directory`, which is made where it is missing.

        A file of the same name is replaced.

        Raises:
            OSError: the folder cannot be made or written to.
            DivergedImage: an image that is not finite.
            ValueError: images that are no picture, as latents of many channels.
        """
        return tuple(self.written(directory))

    def written(self, directory: str | os.PathLike[str], *, first: int = 0) -> Iterator[Path]:
        """`save`, image by image, with numbers from `first` on."""
        files = [encode_png(each) for each in self.pixels()]
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for index, content in enumerate(files):
            caption = self.captions[index] if index < len(self.captions) else ""
            path = folder / file_name(first + index, caption)
            path.write_bytes(content)
            yield path


def file_name(number: int, caption: str) -> str:
    """The name of an image's file; what a name cannot hold becomes a dash."""
    word = WORD.sub("-", caption)[:LONGEST].strip("-.")
    return f"{number:04d}-{word}.png" if word else f"{number:04d}.png"
