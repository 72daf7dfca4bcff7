"""Reference logits and gradients of decoders, from transformers in float64.

    uv run --group oracle python tools/make_llama_golden.py

writes packages/dew-lm/tests/golden/<case>.npz. Weights are not stored: `draw` makes them from their names,
wide enough (standard deviation 0.3, scales 1 + N(0, 0.3)) that a wrong field moves the logits by far more
than rounding does. Of a gradient every eleventh entry and the norm are kept. Parameter names and layouts are
Dew's.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden"
STRIDE = 11
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-2,
    "attention_dropout": 0.0,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
EXPERTS = {"tie_word_embeddings": False, "num_experts_per_tok": 2, "output_router_logits": False}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama_tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_geglu": ("LlamaConfig", {"tie_word_embeddings": False, "hidden_act": "gelu_pytorch_tanh"}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": False, "head_dim": 24}),
    "mistral": ("MistralConfig", {"tie_word_embeddings": False, "head_dim": 24, "sliding_window": 5}),
    "mixtral": ("MixtralConfig", {**EXPERTS, "num_local_experts": 6, "sliding_window": 5}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **EXPERTS,
            "num_experts": 6,
            "head_dim": 24,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
}
"""Case -> configuration class of transformers and the fields that differ from `SIZES`."""


def token_ids() -> np.ndarray:
    """The ids every case reads, [2, 40]."""
    return np.random.default_rng(7).integers(0, 97, (2, 40))


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float64 weight called `name`; one name and shape give one array."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    # Rounded, so that float32 and float64 evaluate the same function.
    return (0.3 * noise + (len(shape) == 1)).astype(np.float32).astype(np.float64)


def dew_name(name: str) -> str:
    """A name in a transformers state dict as a path in Dew's tree."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "layers":
        parts = [f"layers_{parts[1]}", *parts[2:]]
    leaf = "embedding" if parts[0] == "embed_tokens" else "scale" if "norm" in parts[-2] else "kernel"
    return "/".join([*parts[:-1], leaf])


def dew_leaves(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """A torch parameter as Dew's leaves: kernels are [in, out], and gates and up projections are apart."""
    path = dew_name(name)
    if ".experts." not in name:
        return {path: value.T if path.endswith("kernel") else value}
    block, turned = path.removesuffix("/experts/kernel"), value.swapaxes(1, 2)
    if name.endswith("down_proj"):
        return {f"{block}/experts_down_proj": turned}
    gate, up = np.split(turned, 2, axis=2)
    return {f"{block}/experts_gate_proj": gate, f"{block}/experts_up_proj": up}


def torch_value(leaves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Undo `dew_leaves`."""
    first = next(iter(leaves))
    whole = np.concatenate(list(leaves.values()), axis=-1)
    if "/experts_" in first:
        return whole.swapaxes(1, 2)
    return whole.T if first.endswith("kernel") else whole


def reference(case: str) -> dict[str, np.ndarray]:
    """Evaluate `case` in transformers: `logits`, and `grad/<path>` of the token-mean loss, in float64."""
    import torch
    import transformers

    config_class, fields = CASES[case]
    config = getattr(transformers, config_class)(**{**SIZES, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            shapes = dew_leaves(name, np.empty(parameter.shape))
            drawn = {path: draw(path, empty.shape) for path, empty in shapes.items()}
            parameter.copy_(torch.from_numpy(torch_value(drawn).copy()))
    ids = torch.from_numpy(token_ids())
    logits = model(ids).logits
    flat = logits[:, :-1].reshape(-1, logits.shape[-1])
    torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1)).backward()
    values = {"logits": logits.detach().numpy()}
    for name, parameter in parameters.items():
        for path, gradient in dew_leaves(name, parameter.grad.numpy()).items():
            values[f"grad/{path}"] = gradient
    return values


def digest(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a golden file keeps of `values`, in float32."""
    kept = {"logits": values["logits"].astype(np.float32)}
    for name, value in values.items():
        if name.startswith("grad/"):
            kept[name] = value.ravel()[::STRIDE].astype(np.float32)
            kept["norm/" + name.removeprefix("grad/")] = np.float32(np.linalg.norm(value))
    return kept


def main() -> int:
    """Write every golden file."""
    import torch
    import transformers

    made = {
        "command": "uv run --group oracle python tools/make_llama_golden.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        note = np.array(json.dumps({**made, "case": case}))
        np.savez_compressed(GOLDEN / f"{case}.npz", made=note, **digest(reference(case)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
