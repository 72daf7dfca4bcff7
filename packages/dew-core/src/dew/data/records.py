"""The records of a dataset by number: what is left of it once order, batches and shares are taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dew.data.config import Loading
from dew.data.dataset import Dataset

if TYPE_CHECKING:
    import grain


@dataclass(frozen=True, kw_only=True)
class Records:
    """One pass over the training records, and the validation records.

    Attributes:
        train: the training records in the order of the first pass; repeated, each pass has its own.
        validation: the validation records in order, or None.
        identity: names and JSON values that tell this data from other data.
        description: what became of the source, a line each, as `Dataset.description`.
        kinds: the kinds of targets in each split, as `Dataset.kinds`.
    """

    train: grain.MapDataset[Any]
    validation: grain.MapDataset[Any] | None
    identity: Mapping[str, object]
    description: tuple[str, ...] = ()
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def dataset(self, *, batch: int, loading: Loading) -> Dataset:
        """These records in batches; see `Dataset.from_grain`."""
        opened = Dataset.from_grain(
            self.train,
            batch=batch,
            validation=self.validation,
            loading=loading,
            fingerprint=self.identity,
        )
        return replace(opened, description=self.description, kinds=self.kinds)
