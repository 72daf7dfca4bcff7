"""`TrainState`: everything a run is, besides its data position."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from dew.objectives.base import Variables, merge
from dew.training.offload import on_device
from dew.training.scale import LossScale

type Accumulation = dict[str, Any]
"""The partial window as nested dicts of arrays: a checkpoint restores it without knowing the objective."""


@struct.dataclass
class TrainState:
    """The state one compiled step maps to the next.

    Attributes:
        step: completed attempts, rejected ones included; `int32`, as are the other two clocks.
        microstep: accepted microbatches, those without support included.
        updates: committed optimizer updates.
        params: the complete Flax variables, the inner `params` collection among them.
        opt_state: the optimizer's state; moves on commits alone.
        ema: the averaged leaves, nested as in `params`, or None.
        key: the run's root key; never changes.
        scale: the dynamic loss scale and its history, or None.
        window_size: microbatches in an accumulation window.
        accumulation: the partial window, or None where there is none.
    """

    step: jax.Array
    microstep: jax.Array
    updates: jax.Array
    params: Variables
    opt_state: Any
    ema: Variables | None
    key: jax.Array
    scale: LossScale | None
    window_size: jax.Array
    accumulation: Accumulation | None = None

    @property
    def averaged(self) -> Variables:
        """`params` with the averaged leaves in place of the live ones, in the devices' memory.

        Raises:
            ValueError: the run keeps no average.
        """
        if self.ema is None:
            raise ValueError(
                "this run keeps no moving average; read `params`, or give the objective an EMASpec"
            )
        return merge(self.params, on_device(self.ema))
