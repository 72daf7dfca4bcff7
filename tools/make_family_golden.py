"""Reference logits and gradients of every family of decoders, from transformers in float64.

    uv run --group oracle python tools/make_family_golden.py

writes packages/dew-lm/tests/golden/families.json and families.npz, and expert_families of those with experts;
with one of the two names, that one alone. Weights are not stored: `draw` makes them
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
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    if case.experts:
        return _drawn_by_file(case, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(draw(case, name, tuple(parameter.shape))))
    return model


def _drawn_by_file(case: Case, model: Any) -> Any:
    """`model` with weights drawn under the names of its saved file."""
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as folder:
        shapes = {name: value.shape for name, value in in_a_file(model, folder).items()}
        drawn = {name: draw(case, name, shape) for name, shape in shapes.items()}
        save_file(drawn, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        return loaded(folder)[0]


def loaded(folder: str | Path) -> tuple[Any, dict[str, Any]]:
    """The model that transformers reads from `folder`, in float32, and what it says of the tensors."""
    import transformers

    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        output_loading_info=True,
        dtype="float32",
        attn_implementation="eager",
        experts_implementation="eager",
    )
    for module in model.modules():
        if hasattr(module, "limit"):
            # A constant in this version of transformers, whatever the configuration says.
            module.limit = model.config.swiglu_limit
    return model.eval(), told


def in_a_file(model: Any, folder: str) -> dict[str, np.ndarray]:
    """The tensors that transformers saves of `model`, in `folder`."""
    from safetensors.numpy import load_file

    model.save_pretrained(folder)
    return load_file(Path(folder) / "model.safetensors")


def torch_logits(model: Any, case: Case) -> np.ndarray:
    """The logits of a case's ids, in the model's dtype."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(token_ids(case))).logits.numpy()


def evaluated(model: Any, case: Case) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits, and gradients of the token-mean loss by the module's names."""
    import torch

    ids = torch.from_numpy(token_ids(case))
    model.zero_grad()
    logits = model(ids).logits
    flat = logits[:, :-1].reshape(-1, logits.shape[-1])
    torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1)).backward()
    gradients = {
        # A choice of keys passes no gradient.
        name: np.zeros(each.shape) if each.grad is None else each.grad.numpy().copy()
        for name, each in model.named_parameters()
    }
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


def saved_gradients(model: Any) -> dict[str, np.ndarray]:
    """The gradients of `model` as the tensors of its saved file; zeros for buffers, which have none."""
    import torch

    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for buffer in model.buffers():
            buffer.zero_()
        for parameter in model.parameters():
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
        return in_a_file(model, folder)


def by_file(case: Case, model: Any, gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of `model` under the names of its saved file; its own weights may be lost."""
    if case.experts:
        return saved_gradients(model)
    return {name: gradients[own] for name, own in as_saved(case)[1].items()}


def as_saved(case: Case) -> tuple[dict[str, Any], dict[str, str]]:
    """The `config.json` that transformers saves, and for each tensor of the file its name in the module."""
    model = torch_model(case)
    with tempfile.TemporaryDirectory() as folder:
        files = in_a_file(model, folder)
        config = json.loads((Path(folder) / "config.json").read_text())
    if case.experts:
        return config, {name: name for name in files}
    values = {name: value.detach().numpy() for name, value in model.named_parameters()}
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
    gradients = by_file(case, model, gradients)
    config, names = as_saved(case)
    kept = {
        "config": config,
        "tensors": {name: list(gradients[name].shape) for name in names},
        "drawn_as": {name: own for name, own in names.items() if name != own},
        "floor": float(f"{floor:.2g}"),
        "gradient_floor": float(f"{gradient_floor:.2g}"),
        "gradients": {
            name: [float(f"{value:.{DIGITS}g}") for value in told(name, gradients[name])] for name in names
        },
    }
    return kept, logits[:, list(POSITIONS)].astype(np.float32)


def main() -> None:
    """Write the files."""
    import torch
    import transformers

    torch.set_num_threads(1)
    head = {"command": COMMAND, "torch": torch.__version__, "transformers": transformers.__version__}
    for stem in sys.argv[1:] or ("families", "expert_families"):
        cases: dict[str, Any] = {}
        logits: dict[str, np.ndarray] = {}
        for name, case in CASES.items():
            if case.experts == (stem == "expert_families"):
                cases[name], logits[name] = record(case)
                kept = cases[name]
                print(f"{name:22} floor {kept['floor']:.1e}  gradients {kept['gradient_floor']:.1e}")
        text = json.dumps({**head, "cases": cases}, separators=(",", ":"))
        (GOLDEN / f"{stem}.json").write_text(text + "\n")
        np.savez_compressed(GOLDEN / f"{stem}.npz", **logits)


if __name__ == "__main__":
    main()
