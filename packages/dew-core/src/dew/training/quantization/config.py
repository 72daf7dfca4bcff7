"""Quantized training as a plain record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

type QuantizedDtype = Literal["int8", "float8_e4m3fn"]


@dataclass(frozen=True)
class Quantization:
    """Which products of the model run in a narrow type.

    Attributes:
        weights: type of the weights in a product.
        activations: type of the activations in a product; None leaves them in the compute dtype.
        modules: glob over the module paths whose products are quantized.
    """

    weights: QuantizedDtype = "int8"
    activations: QuantizedDtype | None = "int8"
    modules: str = "*"
