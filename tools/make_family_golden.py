"""Reference logits and gradients of every family of decoders, from transformers in float64.

    uv run --group oracle python tools/make_family_golden.py

writes packages/dew-lm/tests/golden/families.json and families.npz. Weights are not stored: `draw` makes them
from their names. Of the logits four positions are kept, of a gradient its norm and its product with a fixed
direction. The floor is the largest difference between float32 and float64 in transformers itself; that of
gradients is the worst tensor's, relative to its largest entry.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from family_cases import CASES, Case

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden"
POSITIONS = (1, 13, 26, 39)
COMMAND = "uv run --group oracle python tools/make_family_golden.py"
DIGITS = 9


def token_ids(case: Case) -> np.ndarray:
    """The ids a case reads, [2, tokens]."""
    return np.random.default_rng(7).integers(0, 97, (2, case.tokens))


def draw(case: Case, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 tensor called `name`; one name and shape give one array.

    Standard deviation 0.3 around 0, and around 1 for the scales of norms.
    """
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    scale = len(shape) == 1 and name.endswith("weight") and not case.offset
    return (0.3 * noise + scale).astype(np.float32)


def direction(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What a gradient is multiplied by."""
    return np.random.default_rng(zlib.crc32(f"direction of {name}".encode())).standard_normal(shape)


def told(name: str, gradient: np.ndarray) -> list[float]:
    """What is kept of a gradient: its norm, and its product with a direction of its own."""
    wide = np.asarray(gradient, np.float64)
    return [float(np.linalg.norm(wide)), float(np.sum(wide * direction(name, wide.shape)))]


def torch_model(case: Case, **altered: Any) -> Any:
    """The model of a case with the drawn weights, in float32, with fields of its configuration altered.

    Weights are drawn for the names of the module, of which those in a saved file are another spelling.
    """
    import torch
    import transformers

    # Configurations write into the dictionaries they are given.
    config = getattr(transformers, case.config)(**copy.deepcopy({**case.fields, **altered}))
    eager = {"attn_implementation": "eager"} | ({"experts_implementation": "eager"} if case.experts else {})
    model = transformers.AutoModelForCausalLM.from_config(config, **eager).eval()
    with torch.no_grad():
        for name, held in leaves(model).items():
            for own, index in pieces(case, name, tuple(held.shape)):
                part = held[index]
                part.copy_(torch.from_numpy(draw(case, own, tuple(part.shape))))
    return model


def leaves(model: Any) -> dict[str, Any]:
    """Parameters, and the buffers that a file holds."""
    held = model.state_dict(keep_vars=True)
    tied = dict(model.named_parameters())
    return tied | {name: value for name, value in held.items() if name.endswith("e_score_correction_bias")}


def pieces(case: Case, name: str, shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The tensors that a module's one is drawn as, each with its place in it: itself, or one an expert."""
    base, _, last = name.rpartition(".")
    if not case.experts or last not in ("gate_up_proj", "down_proj") or not base.endswith(".experts"):
        return [(name, ...)]
    half = shape[1] // 2
    places = {"down_proj": slice(None)}
    if last == "gate_up_proj":
        places = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}
    return [
        (f"{base}.{expert}.{part}.weight", (expert, place))
        for expert in range(shape[0])
        for part, place in places.items()
    ]


def torch_logits(model: Any, case: Case) -> np.ndarray:
    """The logits of a case's ids, in the model's dtype."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(token_ids(case))).logits.numpy()


def evaluated(model: Any, case: Case) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits, and gradients of the token-mean loss by the names that weights are drawn for.

    What has no gradient, as biases of a choice of experts and a choice of keys, has zeros.
    """
    import torch

    ids = torch.from_numpy(token_ids(case))
    model.zero_grad()
    logits = model(ids).logits
    flat = logits[:, :-1].reshape(-1, logits.shape[-1])
    torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1)).backward()
    gradients: dict[str, np.ndarray] = {}
    for name, held in leaves(model).items():
        gradient = np.zeros(held.shape) if held.grad is None else held.grad.numpy().copy()
        gradients |= {own: gradient[index] for own, index in pieces(case, name, tuple(held.shape))}
    return logits.detach().numpy(), gradients


def floors(case: Case) -> tuple[float, float]:
    """What float32 itself loses in transformers: of logits, and of gradients."""
    narrow, narrow_gradients = evaluated(torch_model(case), case)
    wide, wide_gradients = evaluated(torch_model(case).double(), case)
    worst = max(
        float(np.abs(narrow_gradients[name] - value).max() / np.abs(value).max())
        for name, value in wide_gradients.items()
        if value.any()
    )
    return float(np.abs(narrow - wide).max()), worst


def as_saved(case: Case) -> tuple[dict[str, Any], dict[str, str]]:
    """The `config.json` that transformers saves, and for each tensor of the file its name in the module."""
    from safetensors.numpy import load_file

    model = torch_model(case)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files = load_file(Path(folder) / "model.safetensors")
        config = json.loads((Path(folder) / "config.json").read_text())
    values = {
        own: held.detach().numpy()[index]
        for name, held in leaves(model).items()
        for own, index in pieces(case, name, tuple(held.shape))
    }
    names = {
        name: next(own for own, held in values.items() if np.array_equal(held, value))
        for name, value in files.items()
    }
    return config, names


def record(case: Case) -> tuple[dict[str, Any], np.ndarray]:
    """What is kept of a case."""
    model = torch_model(case).double()
    logits, gradients = evaluated(model, case)
    floor, gradient_floor = floors(case)
    shapes = {name: list(value.shape) for name, value in gradients.items()}
    config, names = as_saved(case)
    kept = {
        "config": config,
        "tensors": {name: shapes[own] for name, own in names.items()},
        "drawn_as": {name: own for name, own in names.items() if name != own},
        "floor": float(f"{floor:.2g}"),
        "gradient_floor": float(f"{gradient_floor:.2g}"),
        "gradients": {
            name: [float(f"{value:.{DIGITS}g}") for value in told(name, gradients[own])]
            for name, own in names.items()
        },
    }
    return kept, logits[:, list(POSITIONS)].astype(np.float32)


def main() -> None:
    """Write both files."""
    import torch
    import transformers

    torch.set_num_threads(1)
    cases: dict[str, Any] = {}
    logits: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        cases[name], logits[name] = record(case)
        print(f"{name:22} floor {cases[name]['floor']:.1e}  gradients {cases[name]['gradient_floor']:.1e}")
    head = {"command": COMMAND, "torch": torch.__version__, "transformers": transformers.__version__}
    text = json.dumps({**head, "cases": cases}, separators=(",", ":"))
    (GOLDEN / "families.json").write_text(text + "\n")
    np.savez_compressed(GOLDEN / "families.npz", **logits)


if __name__ == "__main__":
    main()
