"""What dew-diffusion adds."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
METRICS = {
    "psnr": ("PSNR", "Peak signal-to-noise ratio in decibels, images beside their references."),
    "ssim": ("SSIM", "Structural similarity of images and their references."),
}


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-diffusion."""
    for name, (attribute, summary) in METRICS.items():
        yield Component("metric", name, f"dew.eval.images:{attribute}", summary)
