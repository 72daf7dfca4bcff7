"""The networks of image joint-embedding prediction: a vision transformer and its predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.jepa.encoder import JepaEncoder as JepaEncoder
    from dew.nn.backbones.jepa.patches import patchify as patchify
    from dew.nn.backbones.jepa.positions import sincos_positions as sincos_positions
    from dew.nn.backbones.jepa.prediction import JepaPredictor as JepaPredictor

__getattr__, __dir__ = lazy(
    __name__,
    {
        "JepaEncoder": "dew.nn.backbones.jepa.encoder:dew-jepa",
        "JepaPredictor": "dew.nn.backbones.jepa.prediction:dew-jepa",
        "patchify": "dew.nn.backbones.jepa.patches:dew-jepa",
        "sincos_positions": "dew.nn.backbones.jepa.positions:dew-jepa",
    },
)
