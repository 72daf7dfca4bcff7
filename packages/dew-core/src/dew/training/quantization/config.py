"""Quantized training as a plain record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

type QuantizedDtype = Literal["int8", "float8_e4m3fn"]


@dataclass(frozen=True)
class Quantization:
    """Which products of the model run in a narrow type.

    Attributes:
        weights: type of the weights in a product.
        activations: type of the activations in a product; None leaves them in the compute dtype.
        modules: glob over the module paths whose products are quantized, as in `layers_*/mlp/*`; `*` crosses
            `/`.

    Raises:
        ValueError: a type that is not one of these, or an empty glob.
    """

    weights: QuantizedDtype = "int8"
    activations: QuantizedDtype | None = "int8"
    modules: str = "*"

    def __post_init__(self) -> None:
        known = get_args(QuantizedDtype.__value__)
        for name, value in (("weights", self.weights), ("activations", self.activations or known[0])):
            if value not in known:
                raise ValueError(f"trainer.quantization.{name}={value!r} must be one of {', '.join(known)}")
        if not self.modules:
            raise ValueError(
                "trainer.quantization.modules='' must be a glob over paths, as in layers_*/mlp/*"
            )
