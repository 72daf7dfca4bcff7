"""What `dew generate` asks of an image encoder. Importing it imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from dew.data.images.config import Textures

if TYPE_CHECKING:
    from dew.config import RunConfig
    from dew.inference.embeddings.task import ImageEmbedding


@dataclass(frozen=True)
class EmbeddingOptions:
    """Turn image files into feature vectors.

    Attributes:
        images: Image files.
        out: The .npy file to write, one row an image in the order given.
        batch: Images computed at once.
        standardize: Bring every image to one mean and contrast first; the default is what the run's data did.

    Raises:
        ValueError: a batch below 1, or a file of another kind.
    """

    images: tuple[str, ...]
    out: str = "features.npy"
    batch: int = 64
    standardize: bool = False

    positional: ClassVar[tuple[str, ...]] = ("images",)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} must be at least 1")
        if not self.out.endswith(".npy"):
            raise ValueError(f"out={self.out!r} must name a .npy file")

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """The options as a run's own configuration has them; the images are the user's to give."""
        return cls((), standardize=isinstance(config.data, Textures))

    def respond(self, task: ImageEmbedding, *, seed: int) -> Iterator[str]:
        """Write the features and say what they are. Nothing is drawn, so `seed` changes nothing.

        Raises:
            ValueError: no image, or one that cannot be used.
            FileNotFoundError: there is no such file, or no folder to write to.
        """
        import numpy as np

        folder = Path(self.out).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"out={self.out!r}: there is no folder {folder}; make it or name another")
        found = task(self.images, batch=self.batch, standardize=self.standardize)
        np.save(self.out, found.features)
        rows, width = found.features.shape
        yield f"{self.out}: {rows} x {width} features ({found.source})\n"
