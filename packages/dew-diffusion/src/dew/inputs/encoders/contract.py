"""What a condition encoder of a denoiser does, beyond the tokens that `dew.inputs` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

type Tokens = jax.Array | np.ndarray
"""What an encoder's captions become in a batch, with a leading row axis."""


@runtime_checkable
class Encoder(Protocol):
    """Turns captions into tokens, and tokens into what a model takes."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The encoder's own frozen arrays; empty where it has none."""
        ...

    @property
    def examples(self) -> Sequence[str]:
        """Captions that show what it can say; empty where there are too many."""
        ...

    def tokenize(self, captions: Sequence[str], /) -> Tokens:
        """The batch field of `captions`. Raises `ValueError` for a caption it cannot say."""
        ...

    def encode(self, params: Mapping[str, Any], tokens: Tokens, /) -> jax.Array:
        """What the model takes, [B, ...], under `params`."""
        ...
