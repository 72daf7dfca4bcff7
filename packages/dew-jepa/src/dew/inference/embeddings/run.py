"""What a run's directory tells the embedding task."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.data.images.config import Textures
from dew.objectives.base import Variables
from dew.objectives.jepa.config import JepaRunConfig
from dew.objectives.jepa.objective import CONTEXT_SOURCE, TARGET_SOURCE, JepaObjective
from dew.training.opening import named_dtype, opened_mesh
from dew.training.runs import load_run

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.training import Layout, MeshSpec


@dataclass(frozen=True)
class OpenedRun:
    """A run's encoder.

    Attributes:
        encoder: computing in the dtype that was asked for.
        variables: the trained tree.
        sample: H, W and C of its images.
        source: what its features are called.
        standardize: whether its data standardised every image.
    """

    encoder: Any
    variables: Variables
    sample: tuple[int, int, int]
    source: str
    standardize: bool


def open_run(
    directory: str | os.PathLike[str],
    *,
    ema: bool,
    step: int | None,
    mesh: Mesh | MeshSpec | None,
    layout: Layout | None,
    dtype: str | None,
    param_dtype: str | None,
) -> OpenedRun:
    """Read a joint-embedding run; the arguments are those of `ImageEmbedding.from_run`.

    Raises:
        ValueError: the run trained something else, or its checkpoint is not what `run.json` describes.
        FileNotFoundError: no run or checkpoint there.
    """
    run = load_run(directory)
    config = run.config
    if not isinstance(config, JepaRunConfig):
        raise ValueError(
            f"{run.directory} trained objective={config.objective!r}, which gives no embeddings; open it "
            "with dew.pipeline"
        )
    objective = run.objective()
    assert isinstance(objective, JepaObjective)
    variables = run.restore(
        step,
        ema=ema,
        dtype=named_dtype("param_dtype", param_dtype),
        mesh=opened_mesh(mesh),
        layout=layout,
        objective=objective,
    )
    compute = named_dtype("dtype", dtype)
    encoder = objective.encoder if compute is None else objective.encoder.clone(dtype=compute)
    return OpenedRun(
        encoder=encoder,
        variables=variables,
        sample=config.image_shape(),
        source=TARGET_SOURCE if ema else CONTEXT_SOURCE,
        standardize=isinstance(config.data, Textures),
    )
