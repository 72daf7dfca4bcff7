"""Reference outputs and gradients of mixtures of experts, from transformers' modules in float64.

    uv run --group oracle python tools/make_mixture_golden.py

writes packages/dew-lm/tests/golden/mixtures.npz: for every case `<case>/out`, and `<case>/<path>` for the
gradient of `sum(sin(out))` by each parameter and by `x`. Weights are not stored: `draw` makes them from their
names in Dew's tree, wide enough that a wrong field moves the output by far more than rounding does.
"""

from __future__ import annotations

import importlib
import json
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/mixtures.npz"
WIDTH, INNER = 8, 6
SIZES = {"hidden_size": WIDTH, "hidden_act": "silu", "num_attention_heads": 2, "num_key_value_heads": 2}
FOUR = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": INNER}
EIGHT = {
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "moe_intermediate_size": INNER,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
}
CASES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "mixtral": (
        "mixtral.MixtralSparseMoeBlock",
        "MixtralConfig",
        {"num_experts_per_tok": 2, "num_local_experts": 4, "intermediate_size": INNER},
    ),
    "qwen2_moe": (
        "qwen2_moe.Qwen2MoeSparseMoeBlock",
        "Qwen2MoeConfig",
        {**FOUR, "shared_expert_intermediate_size": 5, "norm_topk_prob": False},
    ),
    "qwen3_moe": ("qwen3_moe.Qwen3MoeSparseMoeBlock", "Qwen3MoeConfig", {**FOUR, "norm_topk_prob": False}),
    "deepseek_v2": (
        "deepseek_v2.DeepseekV2Moe",
        "DeepseekV2Config",
        {**EIGHT, "topk_method": "group_limited_greedy", "mlp_bias": False},
    ),
    "deepseek_v3": ("deepseek_v3.DeepseekV3MoE", "DeepseekV3Config", {**EIGHT, "norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe.Glm4MoeMoE", "Glm4MoeConfig", {**EIGHT, "norm_topk_prob": False}),
    "gpt_oss": (
        "gpt_oss.GptOssMLP",
        "GptOssConfig",
        {"num_experts_per_tok": 2, "num_local_experts": 4, "intermediate_size": INNER},
    ),
    "llama4": (
        "llama4.Llama4TextMoe",
        "Llama4TextConfig",
        {"num_experts_per_tok": 1, "num_local_experts": 4, "intermediate_size": INNER},
    ),
}
"""Case -> the module, its configuration's class, and the fields that differ from `SIZES`."""
LIMIT = 0.4
"""GPT-OSS's clamp: the module's constant 7.0 would bound nothing here."""


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float64 array called `name`; one name and shape give one array, which float32 holds exactly."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return (0.5 * noise).astype(np.float32).astype(np.float64)


def inputs() -> np.ndarray:
    """What every case reads, [3, 7, WIDTH]."""
    return 2 * draw("x", (3, 7, WIDTH))


type Parts = tuple[tuple[str, ...], Callable[[np.ndarray], list[np.ndarray]], Callable[..., np.ndarray]]
"""Paths in Dew's tree, a torch value as their leaves, and the leaves as the torch value."""


def parts_of(name: str) -> Parts:
    """How a torch parameter of any of these modules stands in Dew's tree."""
    rest = name.replace("shared_experts.", "shared_expert.").replace("router.", "gate.")
    if not rest.startswith("experts."):
        if rest == "gate.e_score_correction_bias":
            return ("moe/gate/bias",), lambda value: [value], lambda leaf: leaf
        path = rest.replace(".weight", ".kernel").replace(".", "/")
        return (path,), lambda value: [value.T], lambda leaf: leaf.T
    leaf = rest.removeprefix("experts.")
    path = f"bias_{leaf.removesuffix('_bias')}" if leaf.endswith("_bias") else f"experts_{leaf}"
    if "gate_up" not in path:
        return (path,), lambda value: [value], lambda leaf: leaf
    names = path.replace("gate_up", "gate"), path.replace("gate_up", "up")
    return names, lambda value: np.split(value, 2, -1), lambda *leaves: np.concatenate(leaves, -1)


def arranged(case: str, name: str, value: np.ndarray, *, back: bool = False) -> np.ndarray:
    """A torch value of experts with inputs before outputs and gates before up projections; `back` undoes."""
    if not name.startswith("experts."):
        return value
    if case == "gpt_oss":
        half = value.shape[-1] // 2
        mixed = np.arange(2 * half).reshape(2, half).T.ravel()
        return value[..., mixed if back else np.argsort(mixed)] if "gate_up" in name else value
    return value if case == "llama4" else value.swapaxes(1, 2)


def reference(case: str) -> dict[str, np.ndarray]:
    """Evaluate `case` in transformers, in float64: `out`, and the gradients under Dew's paths."""
    import torch
    import transformers

    module, config_class, fields = CASES[case]
    family, name = module.split(".")
    config = getattr(transformers, config_class)(**SIZES, **fields)
    config._experts_implementation = "eager"
    block = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    built = block(config).double()
    if case == "gpt_oss":
        built.experts.limit = LIMIT
    held = dict(built.named_parameters()) | dict(built.named_buffers())
    with torch.no_grad():
        for key, tensor in held.items():
            paths, split, join = parts_of(key)
            shapes = [leaf.shape for leaf in split(arranged(case, key, np.empty(tensor.shape)))]
            whole = join(*(draw(path, shape) for path, shape in zip(paths, shapes, strict=True)))
            tensor.copy_(torch.from_numpy(arranged(case, key, whole, back=True).copy()))
    x = torch.from_numpy(inputs()).requires_grad_()
    result = built(x)
    out = (result[0] if isinstance(result, tuple) else result).reshape(x.shape)
    torch.sin(out).sum().backward()
    values = {"out": out.detach().numpy(), "x": x.grad.numpy()}
    for key, tensor in built.named_parameters():
        paths, split, _ = parts_of(key)
        values |= dict(zip(paths, split(arranged(case, key, tensor.grad.numpy())), strict=True))
    return values


def main() -> int:
    """Write the golden file."""
    import torch
    import transformers

    note = {
        "command": "uv run --group oracle python tools/make_mixture_golden.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    found = {f"{case}/{path}": value for case in CASES for path, value in reference(case).items()}
    kept = {path: value.astype(np.float32) for path, value in found.items()}
    np.savez_compressed(GOLDEN, made=np.array(json.dumps(note)), **kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
