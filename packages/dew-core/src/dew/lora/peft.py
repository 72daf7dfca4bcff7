"""Adapters as the folders of the PEFT library: `adapter_config.json` and `adapter_model.safetensors`.

A module `m` has the tensors `base_model.model.m.lora_A.weight` [rank, in] and `.lora_B.weight` [out, rank];
here they are A [in, rank] and B [rank, out]. Beside the factors of a head PEFT keeps a copy of the base's
own matrix, `m.base_layer.weight`, which is not read.
Format: huggingface.co/docs/peft/developer_guides/checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from dew.lora.config import LoRA
from dew.lora.tensor_file import read_tensors, write_tensors

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
COPY = re.compile(r"base_model\.model\..+\.base_layer\.weight")

READ = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""Fields of `adapter_config.json` that are read, or that say nothing which the tensors' names do not say."""

STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Ways to draw new factors that leave the base as it is; under others the adapter is for a changed base."""

PLAIN = (None, False, "none", {}, [])
"""What any other field holds in a plain adapter."""

type Factors = Mapping[str, tuple[jax.Array, jax.Array]]
"""Module path under `params` -> (A [in, rank], B [rank, out])."""


def dotted(module: str) -> str:
    """A module's path with points, its name in a PyTorch model built like this one."""
    return module.replace("/", ".")


def slashed(name: str) -> str:
    """Undo `dotted`."""
    return name.replace(".", "/")


def save_adapter(
    directory: str | os.PathLike[str],
    factors: Factors,
    lora: LoRA,
    *,
    name_of: Callable[[str], str] = dotted,
    base: str | None = None,
    task_type: str | None = None,
) -> None:
    """Write an adapter that PEFT loads onto the base model.

    Args:
        directory: made where it is missing; must hold no adapter.
        factors: as `dew.lora.factors_of` finds them; tensors keep their dtypes.
        lora: their scale and dropout.
        name_of: from a module's path here to its name in the PyTorch model.
        base: what the configuration names as the base model, a folder or a repository.
        task_type: as in `CAUSAL_LM`; None lets PEFT wrap any model.

    Raises:
        ValueError: no factors, or factors of another rank than `lora.rank`.
        FileExistsError: the folder holds an adapter.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, TENSORS):
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} is there; give a folder without an adapter")
    if not factors:
        raise ValueError(
            "factors={} hold no adapter; give what dew.lora.factors_of finds in a variables tree"
        )
    tensors: dict[str, np.ndarray] = {}
    for module, (a, b) in factors.items():
        if (a.shape[1], b.shape[0]) != (lora.rank, lora.rank):
            raise ValueError(f"{module} has factors of rank {a.shape[1]}, and lora.rank={lora.rank}")
        prefix = f"base_model.model.{name_of(module)}"
        tensors[f"{prefix}.lora_A.weight"] = np.asarray(a).T
        tensors[f"{prefix}.lora_B.weight"] = np.asarray(b).T
    record = adapter_config(lora, sorted(map(name_of, factors)), base=base, task_type=task_type)
    (folder / CONFIG).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    write_tensors(folder / TENSORS, tensors)


def adapter_config(
    lora: LoRA, modules: list[str], *, base: str | None = None, task_type: str | None = None
) -> dict[str, Any]:
    """`adapter_config.json` for `lora` on the PyTorch modules of these whole names."""
    return {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rslora,
        "lora_dropout": lora.dropout,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "use_dora": False,
    }


def load_adapter(
    directory: str | os.PathLike[str], *, path_of: Callable[[str], str] = slashed
) -> tuple[LoRA, dict[str, tuple[jax.Array, jax.Array]]]:
    """Read an adapter that PEFT or `save_adapter` wrote.

    Args:
        directory: with `adapter_config.json` and `adapter_model.safetensors`.
        path_of: from a module's name in the PyTorch model to its path here.

    Returns:
        The record, which targets exactly the modules of the file, and the factors for `with_factors`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: another kind of adapter, an option that is not supported, or tensors that are not the
            factors the configuration describes.
    """
    folder = Path(directory)
    record = _record(folder / CONFIG)
    halves: dict[str, dict[str, np.ndarray]] = {}
    for name, value in read_tensors(folder / TENSORS).items():
        if COPY.fullmatch(name):
            continue
        found = NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{folder / TENSORS} holds {name}, which is no factor of a linear layer")
        halves.setdefault(found[1], {})[found[2]] = value
    rank = record["r"]
    factors: dict[str, tuple[jax.Array, jax.Array]] = {}
    for name, pair in sorted(halves.items()):
        shapes = {side: value.shape for side, value in pair.items()}
        if set(shapes) != {"A", "B"} or not fits(shapes["A"], shapes["B"], rank):
            raise ValueError(
                f"{folder / TENSORS}: {name} has the factors {shapes}; "
                f"r={rank} needs A [r, in] and B [out, r]"
            )
        factors[path_of(name)] = jnp.asarray(pair["A"].T), jnp.asarray(pair["B"].T)
    if not factors:
        raise ValueError(f"{folder / TENSORS} holds no factors")
    lora = LoRA(
        targets=tuple(f"/{module}" for module in sorted(factors)),
        rank=rank,
        alpha=float(record["lora_alpha"]),
        rslora=bool(record.get("use_rslora", False)),
        dropout=float(record.get("lora_dropout", 0.0)),
    )
    return lora, factors


def fits(a: tuple[int, ...], b: tuple[int, ...], rank: int) -> bool:
    """Whether A [rank, in] and B [out, rank] have these shapes."""
    return len(a) == len(b) == 2 and a[0] == b[1] == rank


def _record(path: Path) -> dict[str, Any]:
    read: object = json.loads(path.read_text())
    if not isinstance(read, dict):
        raise ValueError(f"{path} is no object of fields")
    record = cast("dict[str, Any]", read)
    if record.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type={record.get('peft_type')!r}; LORA adapters are read")
    for name, value in record.items():
        plain = STARTS if name == "init_lora_weights" else PLAIN
        if name not in READ and value not in plain:
            raise ValueError(
                f"{path}: {name}={value!r} is not supported in this version; plain adapters are read"
            )
    for name, kinds in {"r": (int,), "lora_alpha": (int, float)}.items():
        if not isinstance(record.get(name), kinds) or isinstance(record[name], bool):
            raise ValueError(f"{path}: {name}={record.get(name)!r} must be a number")
    return record
