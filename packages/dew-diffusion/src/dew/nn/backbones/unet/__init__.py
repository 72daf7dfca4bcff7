"""A convolutional denoiser with skip connections (arXiv 1505.04597, 2006.11239)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.unet.model import UNet as UNet

__getattr__, __dir__ = lazy(__name__, {"UNet": "dew.nn.backbones.unet.model:dew-diffusion"})
