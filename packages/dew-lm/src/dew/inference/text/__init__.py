"""Text generation as a task: a decoder, its weights, its tokenizer and the policy it samples by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ChatProcessor": "dew.inference.text.processor:dew-lm",
        "Processor": "dew.inference.text.processor:dew-lm",
        "RunProcessor": "dew.inference.text.processor:dew-lm",
        "SourceProcessor": "dew.inference.text.processor:dew-lm",
        "TextOptions": "dew.inference.text.options:dew-lm",
        "TextGeneration": "dew.inference.text.task:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.inference.text.options import TextOptions as TextOptions
    from dew.inference.text.processor import ChatProcessor as ChatProcessor
    from dew.inference.text.processor import Processor as Processor
    from dew.inference.text.processor import RunProcessor as RunProcessor
    from dew.inference.text.processor import SourceProcessor as SourceProcessor
    from dew.inference.text.task import TextGeneration as TextGeneration
