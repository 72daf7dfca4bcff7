"""What PEFT writes for adapters of a small Llama, what it merges them to and what the adapted models say.

    uv run --group oracle python tools/golden_peft.py

writes packages/dew-lm/tests/golden/peft: for each case the adapter's folder as PEFT saves it, and in
`values.npz` the base model's tensors, the merged tensors and the logits. Everything is float32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/peft"
COMMAND = "uv run --group oracle python tools/golden_peft.py"
SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-2,
    "rope_theta": 20000.0,
    "tie_word_embeddings": False,
}
CASES: Mapping[str, dict[str, Any]] = {
    "plain": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.25},
    "rslora": {
        "r": 4,
        "lora_alpha": 6,
        "use_rslora": True,
        "target_modules": ["o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
    },
}
"""Case -> the fields of its `LoraConfig`."""


def base() -> Any:
    """The same model every time."""
    import torch
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def write_case(name: str, fields: dict[str, Any], ids: Any) -> dict[str, Any]:
    """Save the adapter of a case; the merged tensors and the logits by name."""
    import torch
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
    generator = torch.Generator().manual_seed(1)
    for key, value in sorted(model.named_parameters()):
        if "lora_B" in key:
            value.data = torch.randn(value.shape, generator=generator) * 0.3
    with torch.no_grad():
        logits = model(ids).logits
    model.save_pretrained(GOLDEN / name)
    (GOLDEN / name / "README.md").unlink(missing_ok=True)
    merged = model.merge_and_unload()
    found = {f"{name}/merged/{key}": value.numpy() for key, value in merged.state_dict().items()}
    return {**found, f"{name}/logits": logits.numpy()}


def main() -> int:
    """Write the golden files."""
    import numpy as np
    import peft
    import torch
    import transformers

    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 9), generator=torch.Generator().manual_seed(2))
    values: dict[str, Any] = {"ids": ids.numpy()}
    values |= {f"base/{key}": value.numpy() for key, value in base().state_dict().items()}
    for name, fields in CASES.items():
        values |= write_case(name, fields, ids)
    np.savez_compressed(GOLDEN / "values.npz", **values)
    made = {"peft": peft.__version__, "transformers": transformers.__version__, "command": COMMAND}
    (GOLDEN / "made.json").write_text(json.dumps({**made, "sizes": SIZES}, indent=1) + "\n")
    print(f"{GOLDEN}: {', '.join(CASES)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
