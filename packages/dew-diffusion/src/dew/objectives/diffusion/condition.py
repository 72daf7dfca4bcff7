"""The condition of a diffusion run as a record. Importing this module imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dew.registry import DtypeName, encoders

if TYPE_CHECKING:
    from dew.inputs.spec import Condition
    from dew.objectives.base import Variables

DEFAULT_MODEL = "openai/clip-vit-large-patch14"
"""The checkpoint of the default encoder."""

OWN = ("encoder", "field", "unconditional")
"""What the condition itself reads; the encoder reads the rest."""


@dataclass(frozen=True)
class TextCondition:
    """What the model is conditioned on: a registered encoder and the batch field it reads.

    Attributes:
        encoder: registered name. labels reads class labels; clip_text is not built yet.
        checkpoint: weights of the encoder; labels has none and leaves the default.
        dtype: what the encoder computes in; unset follows the model.
        param_dtype: what its weights are stored in.
        field: the batch field with its tokens.
        unconditional: caption that stands for no condition; empty is none at all.
        max_length: tokens a caption is padded to; unset is the encoder's own.
        revision: the checkpoint's git revision.
        classes: the classes in the order of their labels; unset takes those of the data.
    """

    encoder: str = "clip_text"
    checkpoint: str = DEFAULT_MODEL
    dtype: DtypeName | None = None
    param_dtype: DtypeName = "float32"
    field: str = "text"
    unconditional: str = ""
    max_length: int | None = None
    revision: str | None = None
    classes: tuple[str, ...] = ()

    def build(self, *, params: Variables | None = None, dtype: DtypeName | None = None) -> Condition:
        """The encoder and its batch field.

        Args:
            params: the encoder's weights, where they are saved with the run.
            dtype: what the run computes in; an unset `dtype` follows it.

        Raises:
            UnknownComponent: no encoder of that name is installed.
            ValueError: a field is set that the encoder does not read, or what the encoder refuses.
        """
        import inspect

        from dew.inputs.spec import Condition

        declared = inspect.signature(encoders.get(self.encoder)).parameters
        fields: dict[str, Any] = {"dtype": self.dtype or dtype, "params": params, **self._read(declared)}
        chosen = {name: value for name, value in fields.items() if name in declared}
        condition = Condition(encoders.build(self.encoder, **chosen), self.field, self.unconditional)
        condition.encoder.tokenize([self.unconditional])
        return condition

    def _read(self, declared: Mapping[str, object]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in OWN or (field.name == "dtype" and value is None):
                continue
            if field.name not in declared and value != field.default:
                raise ValueError(
                    f"text.{field.name}={value!r} is not read by the encoder {self.encoder!r}; leave it at "
                    f"{field.default!r}"
                )
            values[field.name] = value
        return values
