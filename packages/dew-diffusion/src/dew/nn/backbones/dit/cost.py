"""The multiply-adds of the diffusion transformer's forward pass (arXiv 2212.09748, whose Gflops they are)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.nn.denoising.conditioning import SINUSOID

if TYPE_CHECKING:
    from dew.nn.backbones.dit.model import SimpleDiT


def forward_macs(model: SimpleDiT, sample: tuple[int, int, int], condition: int = 0) -> int:
    """Multiply-adds of one sample.

    With L layers of width d and inner width m, N tokens of p by p pixels, C channels in and O out, and a
    condition of width c: `L (4 d^2 N + 2 d m N + 2 N^2 d + 6 d^2) + N p^2 d (C + O) + 2 d^2 +
    (256 + d + c) d`.

    Args:
        model: the sizes.
        sample: height, width and channels.
        condition: width of the condition vector, 0 without one.
    """
    height, width, channels = sample
    patch, features = model.patch_size, model.hidden_size
    tokens = (height // patch) * (width // patch)
    inner = model.mlp_ratio * features
    block = tokens * (4 * features**2 + 2 * features * inner) + 2 * tokens**2 * features + 6 * features**2
    ends = tokens * patch**2 * features * (channels + model.output_channels) + 2 * features**2
    return model.num_layers * block + ends + (SINUSOID + features + condition) * features
