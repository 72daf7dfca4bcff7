"""Images as records that a loader reads by index, and the dataset over them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import grain
import numpy as np
from jaxtyping import Int, UInt8

from dew.data.config import Loading
from dew.data.dataset import Dataset

type Image = UInt8[np.ndarray, "H W C"]
type Record = dict[str, Any]
"""`{"image": uint8 [H, W, C]}`, with an int32 `label` where the set has labels."""


class ImageRecords(ABC):
    """Random access to the images of one split."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record: ...

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """JSON values that tell these records from others, for a resumed run to compare."""


class ImagesInMemory(ImageRecords):
    """Decoded images.

    Args:
        images: `[N, H, W, C]`.
        labels: `[N]`, the class of each.
    """

    def __init__(self, images: UInt8[np.ndarray, "N H W C"], labels: Int[np.ndarray, " N"]) -> None:
        self._images = images
        self._labels = labels.astype(np.int32)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Record:
        return {"image": self._images[index], "label": self._labels[index]}

    @property
    def identity(self) -> Mapping[str, object]:
        digest = hashlib.sha256(self._images.tobytes() + self._labels.tobytes()).hexdigest()
        return {"images": digest, "image_shape": list(self._images.shape[1:])}

    def __repr__(self) -> str:
        return f"ImagesInMemory({self._images.shape})"


class Stretch(ImageRecords):
    """The records `start..stop-1` of others."""

    def __init__(self, records: ImageRecords, start: int, stop: int) -> None:
        self._records = records
        self._start = start
        self._count = max(0, stop - start)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < self._count:
            raise IndexError(f"record {index} of {self._count}")
        return self._records[self._start + index]

    @property
    def identity(self) -> Mapping[str, object]:
        return {**self._records.identity, "stretch": [self._start, self._start + self._count]}

    def __repr__(self) -> str:
        return f"Stretch({self._records!r}, {self._start}, {self._start + self._count})"


def class_by_class(labels: Sequence[int] | Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """An order in which the classes take turns: the first of each, then the second of each, and so on."""
    values = np.asarray(labels)
    turns = np.zeros(len(values), np.int64)
    for value in np.unique(values):
        turns[values == value] = np.arange(np.count_nonzero(values == value))
    return cast("Int[np.ndarray, ' N']", np.lexsort((values, turns)))


def image_dataset(
    train: ImageRecords,
    validation: ImageRecords | None,
    *,
    batch: int,
    val_batches: int | None,
    seed: int,
    loading: Loading,
) -> Dataset:
    """Training records in a new order each epoch, validation records in their own.

    Args:
        train: the training split.
        validation: the validation split, cut to `val_batches` batches; None holds out the first
            `val_batches * batch` training records, or none where that is None or 0.
        batch: images in a global batch.
        val_batches: a bound on the validation pass; 0 validates nothing.
        seed: of the shuffle.
        loading: concurrency.

    Raises:
        ValueError: what is held out leaves no image to train on.
    """
    wanted = (val_batches or 0) * batch
    if validation is None:
        if wanted >= len(train):
            raise ValueError(
                f"data.val_batches={val_batches} holds out {wanted} of {len(train)} images and leaves none "
                "to train on; use fewer batches, a smaller trainer.batch_size or more images"
            )
        train, validation = Stretch(train, wanted, len(train)), Stretch(train, 0, wanted)
    elif val_batches is not None:
        validation = Stretch(validation, 0, min(wanted, len(validation)))
    return Dataset.from_grain(
        grain.MapDataset.source(train).seed(seed).shuffle(),
        batch=batch,
        validation=grain.MapDataset.source(validation) if len(validation) else None,
        loading=loading,
        fingerprint={**train.identity, "validation": dict(validation.identity), "seed": seed},
    )
