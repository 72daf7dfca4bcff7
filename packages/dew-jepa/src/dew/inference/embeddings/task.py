"""The embedding task: one feature vector for every image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference.embeddings.pictures import image_bytes, read_images
from dew.objectives.jepa.objective import ENCODER, encoder_features

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.registry import DtypeName
    from dew.training import Layout, MeshSpec

type Images = np.ndarray | jax.Array | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""An array [N, H, W, C] or [H, W, C], a file, or several files."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of images.

    Attributes:
        features: [N, D] float32, in the order of the images.
        source: which network they come from, and how an image's tokens became one vector.
    """

    features: np.ndarray
    source: str


@dataclass(frozen=True, eq=False)
class ImageEmbedding:
    """A trained encoder bound to weights. Calls of equal shapes reuse one executable, also after `bind`.

    Attributes:
        encoder: from images to token features.
        variables: the complete variables tree of the objective.
        sample: H, W and C of the images it was trained on.
        source: what the results call its features.
        standardize: bring every image to one mean and contrast first, as the run's data did.
    """

    encoder: Any
    variables: Mapping[str, Any]
    sample: tuple[int, int, int]
    source: str
    standardize: bool = False

    def __post_init__(self) -> None:
        # Maps are rebuilt and leaves kept: what the caller does to the mapping later does not reach the task.
        object.__setattr__(self, "variables", jax.tree.map(lambda leaf: leaf, dict(self.variables)))

    def __call__(self, request: Images, *, batch: int = 64, standardize: bool | None = None) -> Embeddings:
        """Embed every image of `request`; an image's features do not depend on the others.

        Args:
            request: bytes or floats in [-1, 1] of the trained shape, or files, which are resized over their
                shorter side and cut to their middle square.
            batch: images that are computed at once.
            standardize: in place of the task's own; it is for bytes and files.

        Raises:
            ValueError: no image, images of another shape, or a file that cannot be used.
            FileNotFoundError: there is no such file.
            TypeError: a list of anything but names.
        """
        if batch < 1:
            raise ValueError(f"batch={batch} must be at least 1")
        images = self._read(request, self.standardize if standardize is None else standardize)
        size = min(batch, len(images))
        tree = {"params": self.variables["params"][ENCODER]}
        rows = [
            np.asarray(_embed(self.encoder, tree, _filled(images[start : start + size], size)))
            for start in range(0, len(images), size)
        ]
        return Embeddings(np.concatenate(rows)[: len(images)], self.source)

    def bind(self, variables: Mapping[str, Any]) -> Self:
        """This task over other weights of the same shapes."""
        return replace(self, variables=variables)

    @classmethod
    def from_run(
        cls,
        directory: str | os.PathLike[str],
        *,
        ema: bool = True,
        step: int | None = None,
        mesh: Mesh | MeshSpec | None = None,
        layout: Layout | None = None,
        dtype: DtypeName | Literal["auto"] | None = None,
        param_dtype: DtypeName | Literal["auto"] | None = None,
    ) -> Self:
        """The task of the run in `directory`.

        Args:
            directory: a run's folder.
            ema: the target encoder; False takes the context encoder.
            step: the checkpoint; None takes the newest.
            mesh: the devices; None is the first device alone.
            layout: where parameters stand on `mesh`.
            dtype: computes; None or "auto" keeps the run's.
            param_dtype: stores; None or "auto" keeps the run's.

        Raises:
            FileNotFoundError: no run or checkpoint there.
            ValueError: the run trained something else, or a dtype it cannot take.
        """
        from dew.inference.embeddings.run import open_run

        opened = open_run(
            directory, ema=ema, step=step, mesh=mesh, layout=layout, dtype=dtype, param_dtype=param_dtype
        )
        return cls(
            opened.encoder, opened.variables, opened.sample, opened.source, standardize=opened.standardize
        )

    def _read(self, request: Images, standardize: bool) -> np.ndarray:
        if isinstance(request, str | os.PathLike):
            request = [request]
        if not isinstance(request, np.ndarray | jax.Array):
            given = cast("Sequence[object]", request)
            others = [each for each in given if not isinstance(each, str | os.PathLike)]
            if others:
                raise TypeError(
                    f"request holds {type(others[0]).__name__}; give names of files, or one array of images "
                    f"{['B', *self.sample]} as numpy.stack makes it"
                )
            request = read_images([Path(name) for name in request], self.sample)
        return image_bytes(np.asarray(request), self.sample, standardize=standardize)


@partial(jax.jit, static_argnums=0)
def _embed(encoder: Any, variables: Mapping[str, Any], images: jax.Array) -> jax.Array:
    return jnp.mean(encoder_features(encoder, variables, images), axis=1)


def _filled(images: np.ndarray, size: int) -> np.ndarray:
    """`images` with copies of the first up to `size`, so that every call has one shape."""
    return np.concatenate([images, np.repeat(images[:1], size - len(images), axis=0)])
