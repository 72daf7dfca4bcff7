"""The decoder-only transformer that Dew's language models train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.backbones.causal_transformer.cache import Cache as Cache
    from dew.nn.backbones.causal_transformer.model import CausalTransformer as CausalTransformer

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Cache": "dew.nn.backbones.causal_transformer.cache:dew-lm",
        "CausalTransformer": "dew.nn.backbones.causal_transformer.model:dew-lm",
    },
)
