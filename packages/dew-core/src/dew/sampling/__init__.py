__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Beam": "dew.sampling.text:dew-lm",
        "DecodeOps": "dew.sampling.text:dew-lm",
        "DecoderState": "dew.sampling.text:dew-lm",
        "Draws": "dew.sampling.text:dew-lm",
        "Generation": "dew.sampling.text:dew-lm",
        "Sampling": "dew.sampling.text:dew-lm",
        "generate": "dew.sampling.text:dew-lm",
        "decoding": "dew.sampling.decoding:dew-lm",
        "LogitsTransform": "dew.sampling.decoding:dew-lm",
        "Sample": "dew.sampling.text:dew-lm",
        "Speculative": "dew.sampling.text:dew-lm",
        "StepState": "dew.sampling.decoding:dew-lm",
        "Stopping": "dew.sampling.decoding:dew-lm",
        "Strategy": "dew.sampling.text:dew-lm",
        "CFG": "dew.sampling.images:dew-diffusion",
        "sample": "dew.sampling.images:dew-diffusion",
        "DDIM": "dew.sampling.solvers:dew-diffusion",
        "DDPM": "dew.sampling.solvers:dew-diffusion",
        "DPMSolverPP": "dew.sampling.solvers:dew-diffusion",
        "Euler": "dew.sampling.solvers:dew-diffusion",
        "EulerAncestral": "dew.sampling.solvers:dew-diffusion",
        "Heun": "dew.sampling.solvers:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.sampling import decoding as decoding
    from dew.sampling.decoding import LogitsTransform as LogitsTransform
    from dew.sampling.decoding import StepState as StepState
    from dew.sampling.decoding import Stopping as Stopping
    from dew.sampling.images import CFG as CFG
    from dew.sampling.images import sample as sample
    from dew.sampling.solvers import DDIM as DDIM
    from dew.sampling.solvers import DDPM as DDPM
    from dew.sampling.solvers import DPMSolverPP as DPMSolverPP
    from dew.sampling.solvers import Euler as Euler
    from dew.sampling.solvers import EulerAncestral as EulerAncestral
    from dew.sampling.solvers import Heun as Heun
    from dew.sampling.text import Beam as Beam
    from dew.sampling.text import DecodeOps as DecodeOps
    from dew.sampling.text import DecoderState as DecoderState
    from dew.sampling.text import Draws as Draws
    from dew.sampling.text import Generation as Generation
    from dew.sampling.text import Sample as Sample
    from dew.sampling.text import Sampling as Sampling
    from dew.sampling.text import Speculative as Speculative
    from dew.sampling.text import Strategy as Strategy
    from dew.sampling.text import generate as generate
