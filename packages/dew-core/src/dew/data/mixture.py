"""`DataMixture`: a run trains on several datasets at once, each as often as its weight says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from dew.config.arguments import JsonArgument
from dew.config.record import decode, encode, fields_record
from dew.data.config import IN_PROCESS, DatasetSpec, Loading, RecordSpec

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.data.records import Records


@dataclass(frozen=True, kw_only=True)
class Part:
    """One dataset of a mixture.

    Attributes:
        data: the dataset.
        weight: how often its records are read, compared with the other parts' weights.

    Raises:
        ValueError: a weight that is not positive and finite.
    """

    data: DatasetSpec
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"weight={self.weight} of a mixture's part must be positive and finite")


def _read(value: object) -> tuple[Part, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    whole = [_completed(item) for item in items]
    return cast("tuple[Part, ...]", decode(tuple[Part, ...], whole, "data.parts"))


def _completed(item: object) -> object:
    """A part's record with the default of every field that it leaves out."""
    from dew.registry import registry_of

    if not isinstance(item, Mapping):
        return item
    record = dict(cast("Mapping[str, Any]", item))
    data: object = record.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("name"), str):
        given = cast("Mapping[str, Any]", data)
        record["data"] = {**fields_record(registry_of("dataset").config(given["name"])()), **given}
    return {"weight": 1.0, **record}


PARTS = JsonArgument(
    '[{"data": {"name": ..., field: value, ...}, "weight": number}, ...]',
    _read,
    lambda value: encode(value, "data.parts"),
)


@dataclass(frozen=True, kw_only=True)
class DataMixture(DatasetSpec):
    """Several datasets, interleaved by weight.

    Which part a record comes from is a law of its number (`dew.data.interleave`), so the batches are the same
    on any number of processes and after any resume. Each part is read through and begins again on its own,
    in a new order, so that one may be in its fifth epoch where another is in its first. An epoch of the
    mixture is as many records as one pass of every part holds. Validation reads the parts' validation records
    one after another.

    Attributes:
        parts: two or more; their records must have the same fields.
        seed: added to the seed of every part.

    Raises:
        ValueError: a part with a `loading` of its own, which nothing would read.
    """

    parts: Annotated[tuple[Part, ...], PARTS] = ()
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        for index, part in enumerate(self.parts):
            if part.data.loading != type(part.data).__dataclass_fields__["loading"].default:
                raise ValueError(
                    f"data.parts[{index}] sets loading, and the mixture reads its parts; set data.loading"
                )

    def check_parts(self) -> None:
        """Refuse a mixture of nothing.

        Raises:
            ValueError: fewer than two parts.
        """
        if len(self.parts) < 2:
            raise ValueError(
                f"data.parts has {len(self.parts)} datasets, and a mixture two or more; write "
                f"--data.parts '{PARTS.metavar}'"
            )

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the interleaved records in batches of `batch`.

        Args:
            batch: records in a global batch.
            tokenize: what every part gets.

        Raises:
            TypeError: a part that has no records by number.
            ValueError: fewer than two parts, or parts whose records differ in fields, shapes or dtypes; and
                what the parts raise.
        """
        import grain

        from dew.data.dataset import Dataset
        from dew.data.interleave import Interleaved

        parts = self._opened(tokenize)
        _require_alike(parts)
        held = [part.validation for part in parts if part.validation is not None]
        opened = Dataset.from_grain(
            grain.MapDataset.source(Interleaved([part.train for part in parts], self._weights)),
            batch=batch,
            validation=grain.MapDataset.concatenate(held) if held else None,
            records=sum(len(part.train) for part in parts),
            loading=self.loading,
            fingerprint={
                "mixture": [
                    {**part.identity, "records": len(part.train), "weight": weight}
                    for part, weight in zip(parts, self._weights, strict=True)
                ]
            },
        )
        told = tuple(f"part {index}, {line}" for index, part in enumerate(parts) for line in part.description)
        return dataclasses.replace(opened, description=told, kinds=_kinds(parts))

    @property
    def _weights(self) -> list[float]:
        return [part.weight for part in self.parts]

    def _opened(self, tokenize: object) -> list[Records]:
        self.check_parts()
        opened: list[Records] = []
        for index, part in enumerate(self.parts):
            spec = dataclasses.replace(part.data, seed=part.data.seed + self.seed)
            if not isinstance(spec, RecordSpec):
                raise TypeError(
                    f"data.parts[{index}]: {type(spec).__name__} gives no records by number and cannot be "
                    "mixed; it needs a records method (dew.data.config.RecordSpec)"
                )
            opened.append(spec.records(tokenize=tokenize))
        return opened


def _require_alike(parts: list[Records]) -> None:
    first, *others = (_described(part) for part in parts)
    for index, described in enumerate(others, 1):
        if described != first:
            raise ValueError(
                f"data.parts[{index}] has records of {described} and data.parts[0] of {first}; mix datasets "
                "of the same fields"
            )


def _kinds(parts: list[Records]) -> dict[str, frozenset[str]]:
    """The kinds of targets in any part, of the splits that are known of every part that has them."""
    training = {"train": [part.kinds.get("train") for part in parts]}
    held = {"val": [part.kinds.get("val") for part in parts if part.validation is not None]}
    return {
        split: frozenset[str]().union(*(each for each in found if each is not None))
        for split, found in {**training, **held}.items()
        if found and None not in found
    }


def _described(part: Records) -> str:
    import jax
    import numpy as np

    def shape(leaf: object) -> str:
        array = np.asarray(leaf)
        return f"{array.dtype}{list(array.shape)}"

    return str(jax.tree.map(shape, part.train[0]))
