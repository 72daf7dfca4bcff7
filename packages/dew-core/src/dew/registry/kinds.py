"""One registry for each kind of component that Dew itself asks for."""

from __future__ import annotations

from typing import Literal

from dew.registry.registry import Registry

type DtypeName = Literal["float32", "bfloat16", "float16", "float64"]
"""The dtypes a configuration can name."""

KINDS = [
    "objective",
    "model",
    "schedule",
    "sampler",
    "preset",
    "scheduler",
    "metric",
    "dataset",
    "tokenizer",
    "encoder",
    "optimizer",
    "tracker",
    "reader",
    "writer",
    "task",
    "recipe",
    "command",
]
REGISTRIES = {kind: Registry(kind) for kind in KINDS}

objectives = REGISTRIES["objective"]
models = REGISTRIES["model"]
schedules = REGISTRIES["schedule"]
samplers = REGISTRIES["sampler"]
presets = REGISTRIES["preset"]
schedulers = REGISTRIES["scheduler"]
metrics = REGISTRIES["metric"]
datasets = REGISTRIES["dataset"]
tokenizers = REGISTRIES["tokenizer"]
encoders = REGISTRIES["encoder"]
optimizers = REGISTRIES["optimizer"]
trackers = REGISTRIES["tracker"]
readers = REGISTRIES["reader"]
writers = REGISTRIES["writer"]
tasks = REGISTRIES["task"]
recipes = REGISTRIES["recipe"]
commands = REGISTRIES["command"]


def registry_of(kind: str) -> Registry:
    """The registry of `kind`, one of Dew's or a plugin's own."""
    return REGISTRIES.get(kind) or Registry(kind)


def name_of(kind: str, cls: type) -> str:
    """The name under which `cls` is registered as a component, or as the configuration of one.

    Raises:
        ValueError: no installed plugin registers it.
    """
    return registry_of(kind).name_of(cls)
