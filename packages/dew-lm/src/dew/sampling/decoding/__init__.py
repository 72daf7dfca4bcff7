"""The parts of a decoding loop: logits transforms, stopping criteria and strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EndOfSequence": "dew.sampling.decoding.stopping:dew-lm",
        "Greedy": "dew.sampling.decoding.filters:dew-lm",
        "LogitsTransform": "dew.sampling.decoding.parts:dew-lm",
        "MaxLength": "dew.sampling.decoding.stopping:dew-lm",
        "MaxNewTokens": "dew.sampling.decoding.stopping:dew-lm",
        "MinP": "dew.sampling.decoding.filters:dew-lm",
        "Sample": "dew.sampling.text.sample:dew-lm",
        "StepState": "dew.sampling.decoding.state:dew-lm",
        "Stopping": "dew.sampling.decoding.parts:dew-lm",
        "Strategy": "dew.sampling.text.strategy:dew-lm",
        "Temperature": "dew.sampling.decoding.filters:dew-lm",
        "TopK": "dew.sampling.decoding.filters:dew-lm",
        "TopP": "dew.sampling.decoding.filters:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.sampling.decoding.filters import Greedy as Greedy
    from dew.sampling.decoding.filters import MinP as MinP
    from dew.sampling.decoding.filters import Temperature as Temperature
    from dew.sampling.decoding.filters import TopK as TopK
    from dew.sampling.decoding.filters import TopP as TopP
    from dew.sampling.decoding.parts import LogitsTransform as LogitsTransform
    from dew.sampling.decoding.parts import Stopping as Stopping
    from dew.sampling.decoding.state import StepState as StepState
    from dew.sampling.decoding.stopping import EndOfSequence as EndOfSequence
    from dew.sampling.decoding.stopping import MaxLength as MaxLength
    from dew.sampling.decoding.stopping import MaxNewTokens as MaxNewTokens
    from dew.sampling.text.sample import Sample as Sample
    from dew.sampling.text.strategy import Strategy as Strategy
