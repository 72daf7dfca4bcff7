"""An image request made ready for its trajectory: conditions encoded, noise drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dew.inputs.encoders import Encoder
from dew.objectives.diffusion.objective import ENCODERS

if TYPE_CHECKING:
    from dew.diffusion.grid import Grid
    from dew.diffusion.process import Process
    from dew.inputs.spec import InputSpec

type Prompts = str | Sequence[str] | int
"""A caption, several, or for a model without conditions a number of images."""


@dataclass(frozen=True, eq=False)
class DenoisingInputs:
    """Everything a trajectory starts from.

    Attributes:
        initial: `[B, ...]` at the noise level of the grid's first point.
        keys: `[B]` the key of each row's fresh noise.
        given: the conditions by the model's keywords, `[B, ...]`.
        unconditional: the same without a condition; None where it was not asked for.
        process: the process of the trajectory.
        grid: its noise levels.
        captions: one for each row, or none.
    """

    initial: jax.Array
    keys: jax.Array
    given: Mapping[str, jax.Array]
    unconditional: Mapping[str, jax.Array] | None
    process: Process
    grid: Grid
    captions: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many images it makes."""
        return self.initial.shape[0]


def read_prompts(prompts: Prompts, inputs: InputSpec) -> tuple[int, tuple[str, ...]]:
    """How many rows are asked for, and their captions.

    Raises:
        ValueError: no row, or captions for a model that reads none.
        TypeError: captions that are no text, or a number where captions are needed.
    """
    if isinstance(prompts, int):
        if inputs.conditions:
            raise TypeError(
                f"prompts={prompts} is a number, and this model is told what to draw; give captions"
            )
        if prompts < 1:
            raise ValueError(f"prompts={prompts} must be at least 1 image")
        return prompts, ()
    captions: list[object] = [prompts] if isinstance(prompts, str) else list(prompts)
    if not inputs.conditions:
        raise ValueError("this model reads no captions; give the number of images in their place")
    if not captions:
        raise ValueError("prompts holds no caption; give one for each image")
    texts = tuple(each for each in captions if isinstance(each, str))
    if len(texts) < len(captions):
        raise TypeError(f"prompts={captions} must be text, also where it names a class: '1', not 1")
    return len(texts), texts


def encode(inputs: InputSpec, variables: Mapping[str, Any], captions: Sequence[str]) -> dict[str, jax.Array]:
    """Every condition of `captions`, by the model's keyword, `[B, ...]`.

    Raises:
        ValueError: a caption that an encoder cannot say.
        TypeError: a condition whose encoder cannot encode.
    """
    frozen = variables.get(ENCODERS, {})
    encoded: dict[str, jax.Array] = {}
    for keyword, condition in inputs.conditions.items():
        encoder = condition.encoder
        if not isinstance(encoder, Encoder):
            raise TypeError(f"the encoder {type(encoder).__name__} of {keyword!r} has no encode")
        encoded[keyword] = encoder.encode(frozen.get(keyword, {}), encoder.tokenize(captions))
    return encoded


def encode_blank(inputs: InputSpec, variables: Mapping[str, Any]) -> dict[str, jax.Array]:
    """What stands for no condition, one row by the model's keyword."""
    blank: dict[str, jax.Array] = {}
    for keyword, condition in inputs.conditions.items():
        alone = type(inputs)(inputs.sample, {keyword: condition})
        blank |= encode(alone, variables, [condition.unconditional])
    return blank


def spread(
    blank: Mapping[str, jax.Array | np.ndarray], given: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """`blank`, one row or as many as `given`, in the shapes and dtypes of `given`.

    Raises:
        ValueError: a blank that does not fit.
    """
    rows: dict[str, jax.Array] = {}
    for keyword, value in given.items():
        if keyword not in blank:
            raise ValueError(f"the unconditional branch lacks {keyword!r}, which the model takes")
        rows[keyword] = jax.numpy.broadcast_to(blank[keyword].astype(value.dtype), value.shape)
    return rows


def request_keys(key: jax.Array | None, seed: int | None, rows: int) -> jax.Array:
    """The key of each row `[B]`.

    Raises:
        ValueError: not exactly one of `key` and `seed`, or keys of another number.
    """
    from dew.sampling.images import row_keys

    if (key is None) == (seed is None):
        raise ValueError("give exactly one of key and seed; seed=n is key=jax.random.key(n)")
    if key is None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"seed={seed!r} must be an integer")
        key = jax.random.key(int(seed))
    return row_keys(key, rows)
