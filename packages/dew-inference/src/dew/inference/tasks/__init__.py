"""Open a trained run as the task its objective publishes; the families' tasks by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DenoisingInputs": "dew.inference.images:dew-diffusion",
        "Images": "dew.inference.images:dew-diffusion",
        "RunProcessor": "dew.inference.text:dew-lm",
        "TextGeneration": "dew.inference.text:dew-lm",
        "TextToImage": "dew.inference.images:dew-diffusion",
        "pipeline": "dew.inference.tasks.opening:dew-inference",
    },
)

if TYPE_CHECKING:
    from dew.inference.images import DenoisingInputs as DenoisingInputs
    from dew.inference.images import Images as Images
    from dew.inference.images import TextToImage as TextToImage
    from dew.inference.tasks.opening import pipeline as pipeline
    from dew.inference.text import RunProcessor as RunProcessor
    from dew.inference.text import TextGeneration as TextGeneration
