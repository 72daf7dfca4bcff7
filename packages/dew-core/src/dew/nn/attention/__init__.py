"""Scaled dot-product attention: the formula, its masks and the kernels that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.attention.config import AttentionImpl as AttentionImpl
    from dew.nn.attention.dispatch import scaled_dot_product_attention as scaled_dot_product_attention
    from dew.nn.attention.masks import allowed_keys as allowed_keys
    from dew.nn.attention.maxima import logit_maxima as logit_maxima

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AttentionImpl": "dew.nn.attention.config:dew-core",
        "allowed_keys": "dew.nn.attention.masks:dew-core",
        "logit_maxima": "dew.nn.attention.maxima:dew-core",
        "scaled_dot_product_attention": "dew.nn.attention.dispatch:dew-core",
    },
)
