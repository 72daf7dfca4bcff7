"""Class labels as a condition."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class LabelEncoder:
    """The i-th of K class names is the i-th unit vector of K + 1; no class is the last one.

    A layer that multiplies the vector by a matrix looks up a learned embedding, that of "no class" among
    them.

    Args:
        classes: the names in the order of their labels.

    Raises:
        ValueError: no name, an empty one, or one twice.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        if not self.classes:
            raise ValueError("classes=() must name the classes in the order of their labels")
        if "" in self.classes or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes={self.classes} must be different and not empty: '' stands for no class"
            )
        self._labels = {name: label for label, name in enumerate((*self.classes, ""))}

    @property
    def params(self) -> Mapping[str, Any]:
        """None: a unit vector needs no weights."""
        return {}

    @property
    def examples(self) -> Sequence[str]:
        """Every class."""
        return self.classes

    def tokenize(self, captions: Sequence[str], /) -> Int[np.ndarray, " B"]:
        """The label of every name; the empty name is no class.

        Raises:
            ValueError: a name that is no class.
        """
        return np.asarray([self._label(caption) for caption in captions], np.int32)

    def encode(self, params: Mapping[str, Any], tokens: Int[Array, " B"], /) -> Float[Array, "B K1"]:
        """Unit vectors; a label outside the classes gives zeros."""
        return jax.nn.one_hot(jnp.asarray(tokens), len(self.classes) + 1, dtype=jnp.float32)

    def _label(self, caption: str) -> int:
        if caption in self._labels:
            return self._labels[caption]
        close = difflib.get_close_matches(caption, self.classes, n=1)
        known = ", ".join(self.classes[:12]) + (", ..." if len(self.classes) > 12 else "")
        fix = f"did you mean {close[0]!r}?" if close else f"the classes are {known}"
        raise ValueError(f"{caption!r} is no class of this model; {fix}")
