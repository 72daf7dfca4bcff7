"""Open a trained run as the task its objective publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "RunProcessor": "dew.inference.text:dew-lm",
        "TextGeneration": "dew.inference.text:dew-lm",
        "pipeline": "dew.inference.tasks.opening:dew-inference",
    },
)

if TYPE_CHECKING:
    from dew.inference.tasks.opening import pipeline as pipeline
    from dew.inference.text import RunProcessor as RunProcessor
    from dew.inference.text import TextGeneration as TextGeneration
