"""Pallas kernels for what XLA leaves in pieces: a product and a reduction of its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.nn.kernels.vocabulary import log_partition as log_partition

__getattr__, __dir__ = lazy(__name__, {"log_partition": "dew.nn.kernels.vocabulary:dew-core"})
