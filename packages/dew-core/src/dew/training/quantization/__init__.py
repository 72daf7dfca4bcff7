"""Quantized training."""

from dew.training.quantization.config import Quantization as Quantization
