"""What one example of an objective looks like: its sample, its conditions and its mask.

Importing this module imports neither jax nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Field:
    """One array of a batch.

    Attributes:
        key: its name in the batch.
        shape: of one example, without the batch axis.

    Raises:
        ValueError: an empty key, or a dimension below 1.
    """

    key: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("key='' names no field of a batch; give the name the dataset uses")
        object.__setattr__(self, "shape", tuple(self.shape))
        if any(size < 1 for size in self.shape):
            raise ValueError(f"shape={self.shape} of field {self.key!r} must hold sizes of at least 1")


@runtime_checkable
class ConditionEncoder(Protocol):
    """Turns captions into what a model is conditioned on; owns its tokens, parameters and outputs."""

    def tokenize(self, captions: Sequence[str], /) -> Any:
        """The tokenized batch field of `captions`, arrays with a leading batch axis."""
        ...


@dataclass(frozen=True)
class Condition:
    """A condition encoder and the batch field it reads.

    Attributes:
        encoder: tokenizes and encodes.
        field: the tokenized batch field it reads.
        unconditional: the caption that stands for no condition.
    """

    encoder: ConditionEncoder
    field: str = "text"
    unconditional: str = ""


@dataclass(frozen=True)
class InputSpec:
    """The fields an objective reads.

    Attributes:
        sample: what is modelled.
        conditions: from a model's keyword (`textcontext`) to the condition it takes.
        mask: a binary image mask, for masked-image conditioning.

    Raises:
        ValueError: two conditions read one batch field.
    """

    sample: Field
    conditions: Mapping[str, Condition] = field(default_factory=dict[str, Condition])
    mask: Field | None = None

    def __post_init__(self) -> None:
        owners: dict[str, str] = {}
        for keyword, condition in self.conditions.items():
            if condition.field in owners:
                raise ValueError(
                    f"conditions {owners[condition.field]!r} and {keyword!r} both read field "
                    f"{condition.field!r}; each condition needs a field of its own"
                )
            owners[condition.field] = keyword

    def tokenize(self, captions: Sequence[str]) -> dict[str, Any]:
        """The tokenized field of every condition; no condition gives no field."""
        return {
            condition.field: condition.encoder.tokenize(captions) for condition in self.conditions.values()
        }
