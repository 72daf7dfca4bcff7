"""A recipe's configuration at a point of the space, and the check of a space before any trial runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dew.config.sweep.space import Dimension, Point

if TYPE_CHECKING:
    from dew.config.run import RunConfig

OWNED = ("trainer.name", "trainer.checkpoint_dir", "objective")
"""Fields that a sweep sets itself, or that make another recipe."""


def record_at(base: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The record of `base` with the point's fields replaced.

    Raises:
        ValueError: a field below one that is no part of the configuration.
    """
    record = copy.deepcopy(dict(base))
    for field, value in point.items():
        *folders, last = field.split(".")
        place: Any = record
        for depth, name in enumerate(folders):
            inner = place.get(name)
            if not isinstance(inner, dict):
                where, above = ".".join(folders[: depth + 1]), ".".join(folders[:depth])
                if name in place and inner is None:
                    raise ValueError(
                        f"space {field}: {where} is None, so it has no fields to vary; choose what it holds "
                        f"(on the command line {where}:NAME)"
                    )
                why = "holds no fields here" if name in place else "is no field"
                raise ValueError(
                    f"space {field}: {where} {why}; {above or 'the configuration'} has {', '.join(place)}"
                )
            place = inner
        place[last] = value
    return record


def config_at(cls: type[RunConfig], base: Mapping[str, Any], point: Point) -> RunConfig:
    """The configuration at a point.

    Raises:
        ValueError: an unknown field, a value of another type, or values that contradict each other.
    """
    record = record_at(base, point)
    try:
        config = cls.from_dict(record)
    except (ValueError, TypeError) as error:
        raise ValueError(f"space at {described(point)}: {error}") from error
    check_model_fields(config, point)
    return config


def check_model_fields(config: RunConfig, point: Point) -> None:
    """Refuse fields that the configured architecture does not take.

    Raises:
        ValueError: with close matches.
    """
    names = [field.split(".")[2] for field in point if field.startswith("model.config.")]
    if not names:
        return
    import inspect

    from dew.registry import models
    from dew.registry.build import check

    architecture = config.model.architecture
    accepted = list(inspect.signature(models.get(architecture)).parameters)
    check(f"space model.config: {architecture}", accepted, dict.fromkeys(names))


def check_space(cls: type[RunConfig], base: Mapping[str, Any], space: Mapping[str, Dimension]) -> None:
    """Try every listed value and the ends of every range, each alone over the base.

    Raises:
        ValueError: the first field or value that does not fit, by name.
    """
    for field, dimension in space.items():
        for owned in OWNED:
            if field == owned or owned.startswith(f"{field}."):
                raise ValueError(f"space {field}: a sweep sets {owned} itself; leave it out")
        for value in dimension.ends:
            config_at(cls, base, {field: value})


def described(point: Point) -> str:
    """A point as `field=value, ...`."""
    return ", ".join(f"{field}={json.dumps(value)}" for field, value in point.items())
