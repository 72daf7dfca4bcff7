"""What transformers declares for each published layout: the tensors of a model and its configuration.

    uv run --group oracle python tools/make_export_golden.py

writes packages/dew-lm/tests/golden/export_layouts.json, case -> tensor names with shapes, and the fields of
the configuration as transformers itself writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/export_layouts.json"
COMMAND = "uv run --group oracle python tools/make_export_golden.py"
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-2,
    "rope_theta": 20000.0,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PATTERN = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOW = {"sliding_window": 5}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama_tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_geglu": ("LlamaConfig", {"hidden_act": "gelu_pytorch_tanh"}),
    "arcee": ("ArceeConfig", {}),
    "mistral": ("MistralConfig", {**WINDOW, "head_dim": 24}),
    "mistral_relu2": ("MistralConfig", {**WINDOW, "hidden_act": "relu"}),
    "mistral_undivided": ("MistralConfig", {"sliding_window": None, "hidden_size": 66}),
    "ministral": ("MinistralConfig", {**WINDOW, "layer_types": PATTERN}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_windows": (
        "Qwen3Config",
        {**WINDOW, "use_sliding_window": True, "layer_types": PATTERN, "hidden_act": "relu"},
    ),
}
"""Case -> configuration class of transformers and the fields that differ from `SIZES`."""


def declared(case: str) -> dict[str, Any]:
    """The tensors and the configuration that transformers gives `case`."""
    import torch
    import transformers

    name, fields = CASES[case]
    config = getattr(transformers, name)(**{**SIZES, **fields})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        # The shared matrix is stored once, under the embedding's name.
        del shapes["lm_head.weight"]
    record = {**config.to_dict(), "architectures": [type(model).__name__]}
    return {"tensors": dict(sorted(shapes.items())), "config": record}


def main() -> int:
    """Write the golden file."""
    import transformers

    made = {"transformers": transformers.__version__, "command": COMMAND}
    record = {"made": made, "cases": {case: declared(case) for case in CASES}}
    GOLDEN.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"{GOLDEN}: {len(CASES)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
