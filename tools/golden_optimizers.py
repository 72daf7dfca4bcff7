"""Twenty steps of torch's Adam and AdamW in float64 on one small problem, as golden values for the tests.

    python tools/golden_optimizers.py packages/dew-core/tests/golden/optimizers.json

Needs torch. The gradient of step t is `scale_t * (p - target)` with the numbers in the file; torch's clipping
comes before the update.
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


def numbers(shape: tuple[int, ...], phase: float) -> torch.Tensor:
    """Deterministic values of order one."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(count * 1.7 + phase).reshape(shape)


def train(rule: str) -> dict[str, list]:
    """The parameters after every step of one rule."""
    cls, options, clip = RULES[rule]
    params = {name: torch.nn.Parameter(numbers(shape, 0.3)) for name, shape in SHAPES.items()}
    optimizer = cls(params.values(), **options)
    history: dict[str, list] = {name: [] for name in SHAPES}
    for step in range(STEPS):
        for name, shape in SHAPES.items():
            params[name].grad = (1 + 0.5 * (-1) ** step) * (params[name].detach() - numbers(shape, 2.0))
        if clip:
            torch.nn.utils.clip_grad_norm_(params.values(), clip)
        optimizer.step()
        for name in SHAPES:
            history[name].append(params[name].detach().tolist())
    return history


def main() -> None:
    """Write the file named on the command line."""
    golden = {
        "command": "python tools/golden_optimizers.py packages/dew-core/tests/golden/optimizers.json",
        "torch": torch.__version__.split("+")[0],
        "start": {name: numbers(shape, 0.3).tolist() for name, shape in SHAPES.items()},
        "target": {name: numbers(shape, 2.0).tolist() for name, shape in SHAPES.items()},
        "scales": [1 + 0.5 * (-1) ** step for step in range(STEPS)],
        "rules": {rule: train(rule) for rule in RULES},
    }
    Path(sys.argv[1]).write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
