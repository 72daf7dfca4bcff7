"""Twenty steps of torch's Adam, AdamW and Muon in float64 on small problems, as golden values for the tests.

    python tools/golden_optimizers.py packages/dew-core/tests/golden/optimizers.json

Needs torch. The gradient of step t is `scale_t * (p - target)` with the numbers in the file; torch's clipping
comes before the update. torch's Muon casts its matrix to bfloat16 before the iterations; here that cast is
taken away, so that the file holds the law and not its rounding.
"""

import json
import sys
from pathlib import Path

import torch

SHAPES = {"a": (3, 4), "b": (5,)}
STEPS = 20
RULES = {
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8}, 0.0),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}, 0.0),
    "adamw_clipped": (torch.optim.AdamW, {"lr": 0.02, "betas": (0.8, 0.99), "weight_decay": 0.3}, 0.5),
}

MUON = {
    "muon_rms": {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"},
    "muon_shape": {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95, "adjust_lr_fn": "original"},
    "muon_plain": {"lr": 0.02, "weight_decay": 0.0, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"},
}
MATRICES = {"wide": (3, 8), "tall": (6, 4)}
GROUPED = {
    "embed_tokens/embedding": ((5, 4), {"weight_decay": 0.0}),
    "layers_0/self_attn/q_proj/kernel": ((4, 4), {"lr": 0.01 / 4}),
    "layers_0/mlp/experts_up_proj": ((2, 4, 3), {"lr": 0.01 / 4}),
    "layers_0/input_layernorm/scale": ((4,), {"weight_decay": 0.0}),
    "norm/bias": ((4,), {"weight_decay": 0.0}),
    "lm_head/kernel": ((4, 5), {}),
}
"""Parameter -> its shape, and what its group sets: hidden weights have a quarter of the rate, as in muP at
four times the width; tables, norms and biases do not decay."""


def numbers(shape: tuple[int, ...], phase: float) -> torch.Tensor:
    """Deterministic values of order one."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(count * 1.7 + phase).reshape(shape)


def parameters(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(numbers(shape, 0.3)) for name, shape in shapes.items()}


def follow(params: dict, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> dict[str, list]:
    """The parameters after every step."""
    shapes = {name: tuple(each.shape) for name, each in params.items()}
    history: dict[str, list] = {name: [] for name in shapes}
    for step in range(STEPS):
        for name, shape in shapes.items():
            params[name].grad = (1 + 0.5 * (-1) ** step) * (params[name].detach() - numbers(shape, 2.0))
        if clip:
            torch.nn.utils.clip_grad_norm_(params.values(), clip)
        optimizer.step()
        for name in shapes:
            history[name].append(params[name].detach().tolist())
    return history


def train(rule: str) -> dict[str, list]:
    """The parameters after every step of one rule."""
    cls, options, clip = RULES[rule]
    params = parameters(SHAPES)
    return follow(params, cls(params.values(), **options), clip)


def muon(rule: str) -> dict[str, list]:
    """The parameters after every step of one setting of Muon, without its cast to bfloat16."""
    params = parameters(MATRICES)
    narrow = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.clone
    try:
        return follow(params, torch.optim.Muon(params.values(), **MUON[rule]))
    finally:
        torch.Tensor.bfloat16 = narrow


def grouped() -> dict[str, list]:
    """The parameters after every step of AdamW with a group for each."""
    params = parameters({name: shape for name, (shape, _) in GROUPED.items()})
    groups = [{"params": [params[name]], **options} for name, (_, options) in GROUPED.items()]
    return follow(params, torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1))


def described(shapes: dict[str, tuple[int, ...]]) -> dict[str, dict]:
    """Where the parameters start and what they are drawn to."""
    return {
        "start": {name: numbers(shape, 0.3).tolist() for name, shape in shapes.items()},
        "target": {name: numbers(shape, 2.0).tolist() for name, shape in shapes.items()},
    }


def main() -> None:
    """Write the file named on the command line."""
    golden = {
        "command": "python tools/golden_optimizers.py packages/dew-core/tests/golden/optimizers.json",
        "torch": torch.__version__.split("+")[0],
        **described(SHAPES),
        "scales": [1 + 0.5 * (-1) ** step for step in range(STEPS)],
        "rules": {rule: train(rule) for rule in RULES},
        "muon": {**described(MATRICES), "rules": {rule: muon(rule) for rule in MUON}},
        "grouped": {
            **described({name: shape for name, (shape, _) in GROUPED.items()}),
            "steps": grouped(),
        },
    }
    Path(sys.argv[1]).write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
