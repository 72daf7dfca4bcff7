"""The multiply-adds of the networks' forward passes, from their sizes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dew.nn.backbones.jepa.encoder import JepaEncoder
    from dew.nn.backbones.jepa.prediction import JepaPredictor


def stack_macs(tokens: int, *, width: int, layers: int, mlp_ratio: float) -> int:
    """`L (T (4 E^2 + 2 E M) + 2 T^2 E)` of `layers` blocks over T tokens that all see each other."""
    inner = round(mlp_ratio * width)
    return layers * (tokens * (4 * width**2 + 2 * width * inner) + 2 * tokens**2 * width)


def encoder_macs(model: JepaEncoder, tokens: int) -> int:
    """Of one image with `tokens` patches given: their embedding and the layers."""
    embedding = tokens * model.patch_size**2 * model.channels * model.hidden_size
    return embedding + stack_macs(
        tokens, width=model.hidden_size, layers=model.num_layers, mlp_ratio=model.mlp_ratio
    )


def predictor_macs(model: JepaPredictor, context: int, targets: int, blocks: int) -> int:
    """Of one image: the context embedded once, then for each block the layers over context and targets."""
    width = model.hidden_size
    layers = stack_macs(context + targets, width=width, layers=model.num_layers, mlp_ratio=model.mlp_ratio)
    return context * model.features * width + blocks * (layers + targets * width * model.features)
