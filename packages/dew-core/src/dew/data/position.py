"""A data position as bytes: where a stream stands, and a fingerprint of the data it stands in.

The bytes are JSON: `{"fingerprint": {...}, "position": n, ...}` with `n` counted in global training records,
so that the position of one process is the position of all.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

_ABSENT = object()


def encode_position(fingerprint: Mapping[str, object], fields: Mapping[str, object]) -> bytes:
    """Return `fields` beside `fingerprint` as canonical JSON bytes; arrays and NumPy scalars keep dtype and
    shape.

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    record = {"fingerprint": dict(fingerprint), **fields}
    return json.dumps(record, sort_keys=True, separators=(",", ":"), default=_plain).encode()


def decode_position(state: bytes, fingerprint: Mapping[str, object]) -> dict[str, Any]:
    """Return what `encode_position` wrote, once its fingerprint is that of the data at hand.

    Raises:
        ValueError: bytes of another form, or a fingerprint that differs; the message lists each differing
            field with the saved value and the present one.
    """
    record, saved = _parted(state)
    present = json.loads(json.dumps(dict(fingerprint), sort_keys=True, default=_plain), object_hook=_restored)
    differing = _differences(saved, present)
    if differing:
        raise ValueError(
            "the saved position belongs to other data: " + "; ".join(differing) + ". "
            "Give the data options and files that the run was saved with (a digest that differs means that a "
            "file holds something else), or start a new run"
        )
    return record


def saved_fingerprint(state: bytes) -> Mapping[str, Any]:
    """Return the fingerprint of the data that the position `state` was saved on.

    Raises:
        ValueError: bytes of another form.
    """
    return _parted(state)[1]


def _parted(state: bytes) -> tuple[dict[str, Any], Mapping[str, Any]]:
    try:
        record = json.loads(state, object_hook=_restored)
        return record, record.pop("fingerprint")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"this is no saved data position: {state[:60]!r}") from error


def _differences(saved: Mapping[str, object], present: Mapping[str, object]) -> list[str]:
    names = sorted(saved.keys() | present.keys())
    return [
        f"{name} was {_shown(saved.get(name, _ABSENT))}, is {_shown(present.get(name, _ABSENT))}"
        for name in names
        if _shown(saved.get(name, _ABSENT)) != _shown(present.get(name, _ABSENT))
    ]


def _shown(value: object) -> str:
    return "unset" if value is _ABSENT else repr(value)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        array = cast("np.ndarray[Any, np.dtype[Any]]", np.asarray(value))
        if array.dtype.hasobject:
            raise TypeError(f"a data position cannot hold an object array: {value!r}")
        packed = base64.b64encode(array.tobytes()).decode()
        return {"__array__": packed, "dtype": array.dtype.str, "shape": array.shape}
    raise TypeError(f"a data position cannot hold a {type(value).__name__}: {value!r}")


def _restored(record: dict[str, Any]) -> object:
    if "__array__" not in record:
        return record
    raw = base64.b64decode(record["__array__"])
    array = np.frombuffer(raw, dtype=np.dtype(record["dtype"])).reshape(record["shape"])
    return array.copy() if array.ndim else array[()]
