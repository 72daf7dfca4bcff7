"""The decoder-only transformer that Dew's language models train, and the records of its choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.causal_transformer.cache import Cache as Cache
    from dew.nn.backbones.causal_transformer.config import Biases as Biases
    from dew.nn.backbones.causal_transformer.config import Rotary as Rotary
    from dew.nn.backbones.causal_transformer.config import Scales as Scales
    from dew.nn.backbones.causal_transformer.config import Temperature as Temperature
    from dew.nn.backbones.causal_transformer.mixers import MLA as MLA
    from dew.nn.backbones.causal_transformer.model import CausalTransformer as CausalTransformer
    from dew.nn.rotary_scaling import RotaryScaling as RotaryScaling

__getattr__, __dir__ = lazy(
    __name__,
    {
        "MLA": "dew.nn.backbones.causal_transformer.mixers:dew-lm",
        "Biases": "dew.nn.backbones.causal_transformer.config:dew-lm",
        "Cache": "dew.nn.backbones.causal_transformer.cache:dew-lm",
        "CausalTransformer": "dew.nn.backbones.causal_transformer.model:dew-lm",
        "Rotary": "dew.nn.backbones.causal_transformer.config:dew-lm",
        "RotaryScaling": "dew.nn.rotary_scaling:dew-core",
        "Scales": "dew.nn.backbones.causal_transformer.config:dew-lm",
        "Temperature": "dew.nn.backbones.causal_transformer.config:dew-lm",
    },
)
