"""Prepared decoder inputs as one pytree."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from flax import struct

type Array = jax.Array | np.ndarray


def _no_fields() -> Mapping[str, Array]:
    return {}


@struct.dataclass
class ModelInputs:
    """Token rows with whatever belongs to them.

    Attributes:
        tokens: `[B, P]` integer ids; what stands in a padding slot is not read.
        token_fields: arrays `[B, P, ...]` aligned with the tokens. `attention_mask` marks the slots that hold
            a real token (nonzero); without it every slot does.
        conditions: arrays `[B, ...]` that condition a row as a whole.
    """

    tokens: Array
    token_fields: Mapping[str, Array] = struct.field(default_factory=_no_fields)
    conditions: Mapping[str, Array] = struct.field(default_factory=_no_fields)
