"""How close images come to the real ones they are paired with: PSNR and SSIM, averaged over a pass."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "PSNR": "dew.eval.images.peak_signal:dew-diffusion",
        "SSIM": "dew.eval.images.structure:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.eval.images.peak_signal import PSNR as PSNR
    from dew.eval.images.structure import SSIM as SSIM
