"""Low-rank adapters: factors trained beside frozen kernels, merged into them, and kept as PEFT's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.lora.config import LoRA as LoRA
    from dew.lora.factors import adapt as adapt
    from dew.lora.factors import factors_of as factors_of
    from dew.lora.factors import merged as merged
    from dew.lora.factors import with_factors as with_factors
    from dew.lora.factors import without_factors as without_factors
    from dew.lora.objective import adapted as adapted
    from dew.lora.peft import load_adapter as load_adapter
    from dew.lora.peft import save_adapter as save_adapter

__getattr__, __dir__ = lazy(
    __name__,
    {
        "LoRA": "dew.lora.config:dew-core",
        "adapt": "dew.lora.factors:dew-core",
        "adapted": "dew.lora.objective:dew-core",
        "factors_of": "dew.lora.factors:dew-core",
        "load_adapter": "dew.lora.peft:dew-core",
        "save_adapter": "dew.lora.peft:dew-core",
        "merged": "dew.lora.factors:dew-core",
        "with_factors": "dew.lora.factors:dew-core",
        "without_factors": "dew.lora.factors:dew-core",
    },
)
