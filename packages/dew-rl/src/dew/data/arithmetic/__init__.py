"""Arithmetic as prompts whose answers a rule can check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "LastDigit": "dew.data.arithmetic.config:dew-rl",
        "prompt_dataset": "dew.data.arithmetic.prompts:dew-rl",
    },
)

if TYPE_CHECKING:
    from dew.data.arithmetic.config import LastDigit as LastDigit
    from dew.data.arithmetic.prompts import prompt_dataset as prompt_dataset
