"""`dew export`: a run as a folder that other programs load."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dew.cli.errors import SUCCESS
from dew.inference.export.writing import PARTS, export_run

DTYPES = ("float32", "bfloat16", "float16")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    request = parser().parse_args(argv)
    folder = export_run(
        request.run,
        request.dest,
        ema=request.ema,
        step=request.step,
        dtype=request.dtype,
        part=request.part,
    )
    print(summary(folder))
    return SUCCESS


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew export",
        allow_abbrev=False,
        description="Write a run's model as a Hugging Face folder: configuration, tensors, tokenizer and "
        "sampling policy.",
    )
    made.add_argument("run", metavar="RUN", help="folder of the run")
    made.add_argument("dest", metavar="DEST", help="folder to write, missing or empty")
    made.add_argument("--step", type=int, help="checkpoint; default the newest")
    made.add_argument(
        "--ema",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use the averaged weights where the run keeps an average",
    )
    made.add_argument(
        "--part",
        choices=PARTS,
        default="model",
        help="of a run that trained a low-rank adapter: the merged model, the adapter alone in PEFT's "
        "layout, or the base it was trained beside; default %(default)s",
    )
    made.add_argument("--dtype", choices=DTYPES, help="type of the tensors; default as the run stored them")
    return made


def summary(folder: Path) -> str:
    """What was written, in a line."""
    files = sorted(path for path in folder.iterdir())
    size = sum(path.stat().st_size for path in files)
    config = folder / "config.json"
    held = json.loads(config.read_text())["architectures"] if config.exists() else ["an adapter"]
    return f"{folder}: {', '.join(held)}, {len(files)} files, {size / 1e6:,.1f} MB"
