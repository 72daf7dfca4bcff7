"""Condition encoders: from captions to what a denoiser is conditioned on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.inputs.encoders.contract import Encoder as Encoder
    from dew.inputs.encoders.labels import LabelEncoder as LabelEncoder

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Encoder": "dew.inputs.encoders.contract:dew-diffusion",
        "LabelEncoder": "dew.inputs.encoders.labels:dew-diffusion",
    },
)
