"""Continue token rows with a decoder: `generate`, its policy `Sampling` and its record `Generation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Decoding": "dew.sampling.text.request:dew-lm",
        "Generation": "dew.sampling.text.record:dew-lm",
        "Sampling": "dew.sampling.text.config:dew-lm",
        "generate": "dew.sampling.text.request:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.sampling.text.config import Sampling as Sampling
    from dew.sampling.text.record import Generation as Generation
    from dew.sampling.text.request import Decoding as Decoding
    from dew.sampling.text.request import generate as generate
