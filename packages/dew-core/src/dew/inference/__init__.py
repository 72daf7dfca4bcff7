__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "pipeline": "dew.inference.tasks:dew-inference",
        "Server": "dew.inference.server:dew-inference",
        "export_run": "dew.inference.export:dew-inference",
        "Processor": "dew.inference.text:dew-lm",
        "RunProcessor": "dew.inference.text:dew-lm",
        "TextGeneration": "dew.inference.text:dew-lm",
        "DenoisingInputs": "dew.inference.images:dew-diffusion",
        "Images": "dew.inference.images:dew-diffusion",
        "TextToImage": "dew.inference.images:dew-diffusion",
        "ImageEmbedding": "dew.inference.embeddings:dew-jepa",
    },
)

if TYPE_CHECKING:
    from dew.inference.embeddings import ImageEmbedding as ImageEmbedding
    from dew.inference.export import export_run as export_run
    from dew.inference.images import DenoisingInputs as DenoisingInputs
    from dew.inference.images import Images as Images
    from dew.inference.images import TextToImage as TextToImage
    from dew.inference.server import Server as Server
    from dew.inference.tasks import pipeline as pipeline
    from dew.inference.text import Processor as Processor
    from dew.inference.text import RunProcessor as RunProcessor
    from dew.inference.text import TextGeneration as TextGeneration
