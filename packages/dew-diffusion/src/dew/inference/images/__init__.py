"""Image generation as a task: a denoiser, its weights, its process and how it is sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DenoisingInputs": "dew.inference.images.prepared:dew-diffusion",
        "ImageOptions": "dew.inference.images.options:dew-diffusion",
        "Images": "dew.inference.images.result:dew-diffusion",
        "TextToImage": "dew.inference.images.task:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.inference.images.options import ImageOptions as ImageOptions
    from dew.inference.images.prepared import DenoisingInputs as DenoisingInputs
    from dew.inference.images.result import Images as Images
    from dew.inference.images.task import TextToImage as TextToImage
