__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "pipeline": "dew.inference.tasks:dew-inference",
        "RunProcessor": "dew.inference.text:dew-lm",
        "TextGeneration": "dew.inference.text:dew-lm",
        "BlockGeneration": "dew.inference.images:dew-diffusion",
        "DenoisingInputs": "dew.inference.images:dew-diffusion",
        "Images": "dew.inference.images:dew-diffusion",
        "MaskedGeneration": "dew.inference.images:dew-diffusion",
        "TextToImage": "dew.inference.images:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.inference.tasks import pipeline as pipeline
    from dew.inference.text import RunProcessor as RunProcessor
    from dew.inference.text import TextGeneration as TextGeneration
