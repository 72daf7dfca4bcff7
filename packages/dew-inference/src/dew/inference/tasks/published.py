"""Published models as tasks: a folder in a layout that an installed family reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dew.cli.errors import UserError
from dew.registry import readers

if TYPE_CHECKING:
    from dew.objectives.base import Task

DESCRIPTIONS = ("config.json", "model_index.json")
"""Either file says what the model in a folder is."""
TASKS = ("text_generation", "text_to_image")
"""The methods by which a family's record of a published model gives its task."""


@dataclass(frozen=True)
class PublishedModel:
    """What a published model's folder says to the options of its family.

    Attributes:
        folder: where it lies.
        tokenizer: the folder again where it holds a tokenizer, or None.
    """

    folder: str
    tokenizer: str | None


def is_published(directory: str) -> bool:
    """Whether `directory` holds the description of a published model, and no run."""
    files = set(os.listdir(directory)) if os.path.isdir(directory) else set[str]()
    return "run.json" not in files and not files.isdisjoint(DESCRIPTIONS)


def published_model(folder: str) -> PublishedModel:
    """The record of the model in `folder`."""
    found = os.path.isfile(os.path.join(folder, "tokenizer.json"))
    return PublishedModel(folder, folder if found else None)


def published_options(folder: str) -> type[Any]:
    """The options of the family that reads the model in `folder`.

    Raises:
        UserError: the family has no command line for its models.
        UnknownComponent: no installed package reads its architecture.
    """
    from dew.interop.pretrained import described

    _, architecture = described(Path(folder))
    if not readers.component(architecture).config:
        raise UserError(
            f"{folder} holds a model of architecture {architecture!r}, whose family has no command line; "
            "open it with dew.interop.load_pretrained"
        )
    return readers.config(architecture)


def open_published(folder: str, *, dtype: str | None, param_dtype: str | None, **refused: Any) -> Task:
    """The task of the model in `folder`, as its files describe it.

    Args:
        folder: of the model.
        dtype: computes; None is float32, "auto" the stored one.
        param_dtype: stores, likewise.
        refused: arguments that belong to runs; each must be None.

    Raises:
        ValueError: such an argument, or a model without a task.
    """
    from dew.interop.pretrained import load_pretrained

    for name, value in refused.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} belongs to a run, and {folder} holds a published model; leave it out"
            )
    found = load_pretrained(folder, dtype=dtype, param_dtype=param_dtype)
    make = next((make for name in TASKS if (make := getattr(found, name, None)) is not None), None)
    if make is None:
        raise ValueError(f"{folder} holds a model that no task runs")
    return cast("Task", make())
