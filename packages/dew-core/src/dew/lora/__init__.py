"""Low-rank adapters."""

from dew.lora.config import LoRA as LoRA
