"""What a decoder reads: token rows, the fields aligned with them, and conditioning arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(__name__, {"ModelInputs": "dew.nn.inputs.model_inputs:dew-lm"})

if TYPE_CHECKING:
    from dew.nn.inputs.model_inputs import ModelInputs as ModelInputs
