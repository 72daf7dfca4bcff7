"""The networks of image joint-embedding prediction: a vision transformer and its predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.jepa.encoder import JepaEncoder as JepaEncoder
    from dew.nn.backbones.jepa.prediction import JepaPredictor as JepaPredictor

__getattr__, __dir__ = lazy(
    __name__,
    {
        "JepaEncoder": "dew.nn.backbones.jepa.encoder:dew-jepa",
        "JepaPredictor": "dew.nn.backbones.jepa.prediction:dew-jepa",
    },
)
