"""What denoising networks share: affine maps with named axes, and the embedding of noise level and
condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.denoising.affine import Affine as Affine
    from dew.nn.denoising.affine import check_sizes as check_sizes
    from dew.nn.denoising.conditioning import Conditioning as Conditioning
    from dew.nn.denoising.conditioning import sinusoid as sinusoid

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Affine": "dew.nn.denoising.affine:dew-diffusion",
        "Conditioning": "dew.nn.denoising.conditioning:dew-diffusion",
        "check_sizes": "dew.nn.denoising.affine:dew-diffusion",
        "sinusoid": "dew.nn.denoising.conditioning:dew-diffusion",
    },
)
