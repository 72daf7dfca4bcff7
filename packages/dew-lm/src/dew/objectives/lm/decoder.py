"""What the objective needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import jax

from dew.nn.stack import DecoderBank
from dew.objectives.base import Variables, thaw


class Decoder(Protocol):
    """A Linen module with a method `hidden_states(tokens, *, train, positions, segment_ids) -> [B, S, D]`.

    It may also declare `causal` (False is refused), `max_seq_len` (rows are not longer) and `bank` (where its
    layers stand, a `DecoderBank`). One with a `bank` passes its layers over `active_stages()` of
    `dew.nn.pipeline`. One with a `mixture` of experts declares `num_layers`, and its `hidden_states` takes
    `routing`, a `dew.nn.moe.RouterRows`.

    Attributes:
        final_logit_softcap: bounds the logits, or None.
        precision: of the products.
    """

    @property
    def final_logit_softcap(self) -> float | None: ...
    @property
    def precision(self) -> jax.lax.PrecisionLike: ...

    def head_weight(self, params: Mapping[str, Any], /) -> jax.Array:
        """The vocabulary matrix [D, V] of a variables tree."""
        ...

    def init(self, rngs: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Draw the variables; Linen's `init`."""
        ...

    def apply(self, variables: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method on variables; Linen's `apply`."""
        ...


def bank_of(model: Decoder) -> DecoderBank | None:
    """Where the model's layers stand, or None if it does not say."""
    return cast("DecoderBank | None", getattr(model, "bank", None))


def vocabulary_of(model: Decoder, variables: Variables) -> int:
    """The number of ids that the model has a logit for."""
    return int(jax.eval_shape(model.head_weight, thaw(variables)).shape[-1])


def check_decoder(model: Decoder, seq_len: int) -> None:
    """Refuse a model that cannot be trained on next tokens of rows of `seq_len`.

    Raises:
        ValueError: it declares `causal=False`, or a `max_seq_len` below `seq_len`.
    """
    if not getattr(model, "causal", True):
        raise ValueError("the model declares causal=False; next-token training needs causal=True")
    longest = cast("int", getattr(model, "max_seq_len", seq_len))
    if seq_len < 1 or seq_len > longest:
        raise ValueError(f"seq_len={seq_len} must lie between 1 and the model's max_seq_len={longest}")
