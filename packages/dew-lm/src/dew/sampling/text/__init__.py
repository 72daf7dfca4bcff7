"""Continue token rows with a decoder: `generate`, its policy `Sampling` and its record `Generation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Beam": "dew.sampling.text.beam:dew-lm",
        "DecodeOps": "dew.sampling.text.operations:dew-lm",
        "DecoderState": "dew.sampling.text.operations:dew-lm",
        "Decoding": "dew.sampling.text.request:dew-lm",
        "Draws": "dew.sampling.text.strategy:dew-lm",
        "Generation": "dew.sampling.text.record:dew-lm",
        "Sample": "dew.sampling.text.sample:dew-lm",
        "Sampling": "dew.sampling.text.config:dew-lm",
        "Speculative": "dew.sampling.text.speculative:dew-lm",
        "Strategy": "dew.sampling.text.strategy:dew-lm",
        "generate": "dew.sampling.text.request:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.sampling.text.beam import Beam as Beam
    from dew.sampling.text.config import Sampling as Sampling
    from dew.sampling.text.operations import DecodeOps as DecodeOps
    from dew.sampling.text.operations import DecoderState as DecoderState
    from dew.sampling.text.record import Generation as Generation
    from dew.sampling.text.request import Decoding as Decoding
    from dew.sampling.text.request import generate as generate
    from dew.sampling.text.sample import Sample as Sample
    from dew.sampling.text.speculative import Speculative as Speculative
    from dew.sampling.text.strategy import Draws as Draws
    from dew.sampling.text.strategy import Strategy as Strategy
