__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Generation": "dew.sampling.text:dew-lm",
        "Sampling": "dew.sampling.text:dew-lm",
        "generate": "dew.sampling.text:dew-lm",
        "decoding": "dew.sampling.decoding:dew-lm",
        "LogitsTransform": "dew.sampling.decoding:dew-lm",
        "Sample": "dew.sampling.decoding:dew-lm",
        "StepState": "dew.sampling.decoding:dew-lm",
        "Stopping": "dew.sampling.decoding:dew-lm",
        "Strategy": "dew.sampling.decoding:dew-lm",
        "CFG": "dew.sampling.images:dew-diffusion",
        "Unmask": "dew.sampling.images:dew-diffusion",
        "sample": "dew.sampling.images:dew-diffusion",
        "DDIM": "dew.sampling.solvers:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.sampling import decoding as decoding
    from dew.sampling.decoding import LogitsTransform as LogitsTransform
    from dew.sampling.decoding import Sample as Sample
    from dew.sampling.decoding import StepState as StepState
    from dew.sampling.decoding import Stopping as Stopping
    from dew.sampling.decoding import Strategy as Strategy
    from dew.sampling.text import Generation as Generation
    from dew.sampling.text import Sampling as Sampling
    from dew.sampling.text import generate as generate
