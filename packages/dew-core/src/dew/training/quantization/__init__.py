"""Quantized training through Qwix."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Quantization": "dew.training.quantization.config:dew-core",
        "quantized": "dew.training.quantization.objective:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.training.quantization.config import Quantization as Quantization
    from dew.training.quantization.objective import quantized as quantized
