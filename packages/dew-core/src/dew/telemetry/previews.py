"""What a run shows of itself, taken out of its artifacts: texts and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dew.artifacts import Artifacts, ImageGrid, TextSamples
from dew.telemetry.png import encode_png

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

SHOWN = 16
"""Pictures of one preview."""


@dataclass(frozen=True)
class Sample:
    """A prompt and its continuation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Picture:
    """One image, `pixels[H, W, C]` in bytes."""

    pixels: UInt8[np.ndarray, "H W C"]
    caption: str = ""

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
            yield from pictures(artifact)


def pictures(grid: ImageGrid) -> Iterator[Picture]:
    """The first images of a grid as bytes: -1 is black, 1 is white, what lies beyond is clipped."""
    import numpy as np

    images = np.asarray(grid.images[:SHOWN], np.float32)
    scaled = np.clip(np.nan_to_num(images) * 127.5 + 127.5, 0, 255).round().astype(np.uint8)
    for index, pixels in enumerate(scaled):
        yield Picture(pixels, grid.captions[index] if index < len(grid.captions) else "")
