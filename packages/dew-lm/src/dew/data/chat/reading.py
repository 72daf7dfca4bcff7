"""Records of JSONL and Parquet files and of folders that the `datasets` library saved, split by split."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dew.data.tokens.columnar import open_arrow_stream, open_parquet

type Record = Mapping[str, Any]

SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".arrow")
VALIDATION = ("val", "validation", "valid", "dev", "eval", "test")
"""Names of a validation split, the first that is there."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""What `datasets` writes beside the Arrow files of one split, and above the folders of several."""


def record_files(path: Path) -> dict[str, list[Path]]:
    """The files of the splits `train` and, where there are any, `val`.

    A file is the training split. In a folder, files whose names begin with `train`, and with a validation
    split's name, are the two; files of other names are the training split where none is called so.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file of another kind, or a folder without files of these kinds.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ValueError(f"data.path={path} must be one of {', '.join(SUFFIXES)}, or a folder of them")
        return {"train": [path]}
    if not path.is_dir():
        raise FileNotFoundError(f"data.path={path} is not there")
    if (path / SAVED_SPLITS).is_file():
        return _saved_splits(path)
    if (path / SAVED).is_file():
        return {"train": _saved_files(path)}
    return _by_name(path)


def read_records(file: Path) -> Iterator[tuple[str, Record]]:
    """The records of a file, each with its place.

    Raises:
        ImportError: pyarrow is needed and not installed.
        ValueError: a line that is no JSON object, or a damaged file.
    """
    if file.suffix in (".jsonl", ".ndjson"):
        yield from _lines(file)
        return
    for number, record in enumerate(_rows(file)):
        yield f"row {number} of {file}", record


def _lines(file: Path) -> Iterator[tuple[str, Record]]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            place = f"line {number} of {file}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{place} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{place} must be a JSON object, not {line[:40]!r}")
            yield place, cast("Record", record)


def _rows(file: Path) -> Iterator[Record]:
    parquet = file.suffix == ".parquet"
    batches = open_parquet(file).iter_batches(1024) if parquet else open_arrow_stream(file)
    for batch in batches:
        yield from batch.to_pylist()


def _saved_splits(path: Path) -> dict[str, list[Path]]:
    names = json.loads((path / SAVED_SPLITS).read_bytes())["splits"]
    if "train" not in names:
        raise ValueError(f"{path} holds splits {', '.join(names)} and no train; name one of its folders")
    held = next((name for name in VALIDATION if name in names), None)
    found = {"train": _saved_files(path / "train")}
    return found if held is None else {**found, "val": _saved_files(path / held)}


def _saved_files(folder: Path) -> list[Path]:
    state = json.loads((folder / SAVED).read_bytes())
    if state.get("_indices_data_files"):
        raise ValueError(f"{folder} chooses rows by an index; save it with flatten_indices() first")
    names = [str(each["filename"]) for each in state["_data_files"]]
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{folder / SAVED} names {name!r}, which lies outside its folder")
    return [folder / name for name in names]


def _by_name(path: Path) -> dict[str, list[Path]]:
    files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
    if not files:
        raise ValueError(f"data.path={path} holds no file of {', '.join(SUFFIXES)}")
    train = [file for file in files if file.stem.startswith("train")]
    held: list[Path] = []
    for name in VALIDATION:
        held = held or [
            file for file in files if file.stem == name or file.stem.startswith((f"{name}-", f"{name}."))
        ]
    train = train or [file for file in files if file not in held]
    if not train:
        raise ValueError(f"data.path={path} holds a validation split and no training split")
    return {"train": train, "val": held} if held else {"train": train}
