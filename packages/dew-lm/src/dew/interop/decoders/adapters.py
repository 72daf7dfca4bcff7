"""Low-rank adapters of decoders as PEFT's folders, under the names of the published layouts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

from dew.interop.decoders.catalogue import layout_of
from dew.interop.decoders.forms import ROWS
from dew.interop.decoders.tensors import held_tensors
from dew.lora import LoRA, factors_of, load_adapter, save_adapter
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.training.runs import load_run

GATE, UP = "mlp.gate_proj", "mlp.up_proj"


def save_decoder_adapter(
    model: object,
    variables: Mapping[str, Any],
    lora: LoRA,
    directory: str | os.PathLike[str],
    *,
    base: str | None = None,
) -> None:
    """Write the factors in `variables` as an adapter for the model that `save_pretrained_decoder` writes.

    Args:
        model: a `CausalTransformer` that a published architecture computes.
        variables: a tree with factors, split by `freeze` or whole.
        lora: their record.
        directory: made where it is missing; must hold no adapter.
        base: what the adapter names as its base model, a folder or a repository.

    Raises:
        ValueError: a model without a published layout, or no factors.
        FileExistsError: the folder holds an adapter.
    """
    doubled = layout_of(model).doubled
    names = {path: name for name, path in _paths(model).items() if not (doubled and name.endswith(GATE))}
    given = factors_of(variables)
    for module in given:
        if module not in names:
            raise ValueError(
                f"the factors of {module} have no place in an adapter: the published model holds it in one "
                "tensor with others, or turned; merge them, and export the merged model"
            )
    factors = {names[module]: pair for module, pair in given.items()}
    if doubled:
        # The published model has the up projection twice, so its delta is needed twice.
        factors |= {name.replace(UP, GATE): pair for name, pair in factors.items() if name.endswith(UP)}
    save_adapter(directory, factors, lora, name_of=str, base=base, task_type="CAUSAL_LM")


def load_decoder_adapter(
    model: object, directory: str | os.PathLike[str]
) -> tuple[LoRA, dict[str, tuple[jax.Array, jax.Array]]]:
    """Read a PEFT adapter of the published model that `model` is.

    Returns:
        The record and the factors, for `dew.lora.with_factors`.

    Raises:
        ValueError: a model without a published layout, a module it lacks, or what `dew.lora.load_adapter`
            refuses.
        FileNotFoundError: a file is missing.
    """
    paths = _paths(model)
    lora, found = load_adapter(directory, path_of=str)
    unknown = sorted(found.keys() - paths.keys())
    if unknown:
        raise ValueError(f"{directory} adapts {unknown[0]}, which the model lacks; it has {', '.join(paths)}")
    if layout_of(model).doubled:
        for name in [name for name in found if name.endswith(GATE)]:
            _require_equal(found.pop(name), found.get(name.replace(GATE, UP)), name)
    factors = {paths[name]: pair for name, pair in found.items()}
    targets = tuple(f"/{module}" for module in sorted(factors))
    return LoRA(targets, lora.rank, lora.alpha, lora.rslora, lora.dropout), factors


def write_adapter(
    directory: str,
    folder: str | os.PathLike[str],
    *,
    ema: bool = True,
    step: int | None = None,
    dtype: Any = None,
) -> None:
    """Write the adapter that the run in `directory` trained: the adapter writer of the decoder's runs.

    Args:
        directory: of the run.
        folder: must hold no adapter.
        ema: take the averaged factors where the run keeps an average that is no frozen reference.
        step: the checkpoint; None takes the newest.
        dtype: stores the tensors; None keeps what the run stored.

    Raises:
        ValueError: the run trained no language model, or no adapter.
    """
    run = load_run(directory)
    objective = run.objective()
    if not isinstance(objective, LMObjective):
        raise ValueError(
            f"{directory} trained objective={run.config.objective!r}, which is no language model"
        )
    averaged = objective.ema is not None and not objective.ema_is_reference
    variables = run.restore(step, ema=ema and averaged, dtype=dtype, objective=objective, adapter=True)
    save_decoder_adapter(objective.model, variables, cast("LoRA", run.config.lora), folder)


def _paths(model: object) -> dict[str, str]:
    """Published module -> path under `params`, for every kernel that has a module to itself."""
    decoder = cast("CausalTransformer", model)
    found: dict[str, str] = {}
    for held in held_tensors(decoder, layout_of(model)):
        module, _, leaf = held.paths[0].removeprefix("params/").rpartition("/")
        if leaf == "kernel" and held.form is ROWS and len(held.paths) == 1:
            found[held.name.removesuffix(".weight")] = module
    return found


def _require_equal(gate: Any, up: Any, name: str) -> None:
    same = up is not None and all(np.array_equal(*pair) for pair in zip(gate, up, strict=True))
    if not same:
        raise ValueError(
            f"{name} and its up projection have different factors; this model has one matrix for both"
        )
