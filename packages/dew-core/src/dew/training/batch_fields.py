"""Whether the data yields what the objective reads, asked before a run computes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.data.dataset import Dataset
from dew.objectives.base import Objective


def require_fields(objective: Objective[Any, Any], batch: Mapping[str, Any]) -> None:
    """Refuse a batch, or a record, without a field that `objective` reads.

    Raises:
        ValueError: naming the fields that are missing and those that are there.
    """
    missing = [name for name in objective.batch_fields if name not in batch]
    if missing:
        raise ValueError(
            f"{type(objective).__name__} reads {_listed(missing)} of every batch, and this data yields "
            f"{_listed(sorted(batch))}; train on a dataset that yields {_listed(missing)}"
        )


def require_fields_of(objective: Objective[Any, Any], data: Dataset) -> None:
    """`require_fields` of the first training record, where the data knows its records by number.

    Raises:
        ValueError: as `require_fields`.
    """
    example = getattr(data.train, "example", None)
    record = None if example is None else example()
    if isinstance(record, Mapping):
        require_fields(objective, record)


def counted_units(objective: Objective[Any, Any], batch: Mapping[str, Any], *, check: bool) -> int:
    """The objective's count of a host batch's units.

    Args:
        objective: counts them.
        batch: as the data yields it.
        check: refuse a batch without the objective's fields; a rollout or a step of the user's own may read
            others.

    Raises:
        ValueError: as `require_fields`.
    """
    if check:
        require_fields(objective, batch)
    return objective.count_units(batch)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
