"""What the objective needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from dew.nn.stack import DecoderBank


class Decoder(Protocol):
    """A Linen module with a method `hidden_states(tokens, *, train, positions, segment_ids) -> [B, S, D]`.

    Attributes:
        causal: whether a token sees no later one.
        max_seq_len: the longest row.
        final_logit_softcap: bounds the logits, or None.
        precision: of the products.
        bank: where the layers stand.
    """

    @property
    def causal(self) -> bool: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def final_logit_softcap(self) -> float | None: ...
    @property
    def precision(self) -> jax.lax.PrecisionLike: ...
    @property
    def bank(self) -> DecoderBank: ...

    def head_weight(self, params: Mapping[str, Any], /) -> jax.Array:
        """The vocabulary matrix [D, V] of a variables tree."""
        ...

    def init(self, rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Draw the variables; Linen's `init`."""
        ...

    def apply(self, variables: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method on variables; Linen's `apply`."""
        ...
