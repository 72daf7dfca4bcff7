"""The diffusion transformer (arXiv 2212.09748)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.dit.model import SimpleDiT as SimpleDiT

__getattr__, __dir__ = lazy(__name__, {"SimpleDiT": "dew.nn.backbones.dit.model:dew-diffusion"})
