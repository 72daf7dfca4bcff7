"""What a run's directory tells a text task."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from dew.data.text import Tokenizer, load_tokenizer
from dew.inference.text.processor import RunProcessor
from dew.objectives.base import Variables, thaw
from dew.objectives.lm import LMObjective
from dew.sampling.text import Sampling
from dew.training.opening import named_dtype, opened_mesh
from dew.training.runs import Run, load_run

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.training import Layout, MeshSpec


@runtime_checkable
class PolicyConfig(Protocol):
    """What a run's configuration says about generating text with the model it trained.

    A configuration with these members whose objective is an `LMObjective` can be opened as text generation,
    whatever the objective learned from.
    """

    @property
    def tokenizer(self) -> str:
        """`byte`, or a tokenizer file or folder."""
        ...

    @property
    def sampling(self) -> Sampling:
        """The policy that generation from the run starts with."""
        ...

    @property
    def preview_tokens(self) -> int | None:
        """How long the run's own continuations are, or None where it shows none."""
        ...


@dataclass(frozen=True)
class OpenedRun:
    """A run's model and how the run itself samples from it.

    Attributes:
        model: the decoder, computing in the dtype that was asked for.
        variables: the trained tree.
        processor: the run's tokenizer.
        sampling: the run's preview policy.
        max_new_tokens: the length of the run's previews, or None where it shows none.
    """

    model: Any
    variables: Variables
    processor: RunProcessor
    sampling: Sampling
    max_new_tokens: int | None


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
    """Read a run that trained a language model, on whatever signal.

    The arguments are those of `TextGeneration.from_run`. An average that is a frozen reference is no policy:
    the live weights are read in its place.

    Raises:
        ValueError: the run trained something else, its checkpoint is not what `run.json` describes, or its
            tokenizer has changed since.
        FileNotFoundError: no run, checkpoint or tokenizer there.
    """
    run = load_run(directory)
    config = run.config
    objective = run.objective() if isinstance(config, PolicyConfig) else None
    if not isinstance(config, PolicyConfig) or not isinstance(objective, LMObjective):
        raise ValueError(
            f"{run.directory} trained objective={run.config.objective!r}, which is no language model; "
            "open it with dew.pipeline"
        )
    tokenizer = load_tokenizer(config.tokenizer)
    _check_tokenizer(tokenizer, run, step)
    averaged = objective.ema is not None and not objective.ema_is_reference
    variables = run.restore(
        step,
        ema=ema and averaged,
        dtype=named_dtype("param_dtype", param_dtype),
        mesh=opened_mesh(mesh),
        layout=layout,
        objective=objective,
    )
    model = objective.model
    compute = named_dtype("dtype", dtype)
    if compute is not None:
        model = cast("Any", model).clone(dtype=compute)
    return OpenedRun(
        model=model,
        variables=thaw(variables),
        processor=RunProcessor(tokenizer),
        sampling=config.sampling,
        max_new_tokens=config.preview_tokens,
    )


def _check_tokenizer(tokenizer: Tokenizer, run: Run, step: int | None) -> None:
    trained = run.data_fingerprint(step).get("tokenizer")
    if trained is not None and trained != tokenizer.fingerprint():
        raise ValueError(
            f"the tokenizer {tokenizer.name!r} has changed since {run.directory} was trained with it "
            f"(fingerprint {trained!r}, now {tokenizer.fingerprint()!r}), so the run's ids would read as "
            "other text; put the file back as it was"
        )
