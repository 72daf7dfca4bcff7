"""What a run shows of itself, taken out of its artifacts: texts and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dew.artifacts import Artifacts, ImageGrid, TextSamples
from dew.telemetry.png import encode_png
from dew.telemetry.sheets import columns_of, sheet, shown_of

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

    from dew.artifacts import Array


@dataclass(frozen=True)
class Sample:
    """A prompt and its continuation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Picture:
    """Images side by side as one, `pixels[H, W, C]` in bytes.

    Attributes:
        pixels: the sheet.
        caption: what its columns, rows or images are.
        count: how many images it holds.
    """

    pixels: UInt8[np.ndarray, "H W C"]
    caption: str = ""
    count: int = 1

    def save(self, path: Path) -> None:
        """Write it as PNG, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(encode_png(self.pixels))
        partial.replace(path)


def preview_items(artifacts: Artifacts) -> Iterator[Sample | Picture]:
    """The texts and pictures among `artifacts`, which have reached the host.

    Artifacts of other types are for the trackers that know them.
    """
    for artifact in artifacts if isinstance(artifacts, tuple) else (artifacts,):
        if isinstance(artifact, TextSamples):
            for prompt, text in zip(artifact.prompts, artifact.texts, strict=True):
                yield Sample(prompt, text)
        elif isinstance(artifact, ImageGrid):
            yield picture(artifact)


def picture(grid: ImageGrid) -> Picture:
    """A grid as one sheet, each image above its reference where it has one."""
    import numpy as np

    tiles = in_bytes(grid.images)
    columns, caption = columns_of(len(tiles), grid.captions)
    if grid.references is not None:
        tiles = np.concatenate([tiles, in_bytes(grid.references)], axis=1)
        caption = " · ".join(filter(None, [caption, "each above its reference"]))
    shown = shown_of(tiles, columns)
    return Picture(sheet(tiles[:shown], columns), caption, shown)


def in_bytes(images: Array) -> UInt8[np.ndarray, "N H W C"]:
    """Images as bytes: -1 is black, 1 is white, what lies beyond is clipped."""
    import numpy as np

    values = np.nan_to_num(np.asarray(images, np.float32))
    return np.clip(values * 127.5 + 127.5, 0, 255).round().astype(np.uint8)
