"""`dew tokenize`: text files, JSONL and Parquet files as a folder of ids that a run reads."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dew.cli.errors import SUCCESS, UserError

if TYPE_CHECKING:
    from dew.data.tokenize.part import PartCounts
    from dew.data.tokenize.run import Progress

EVERY_S = 10.0
"""Seconds between lines of progress where there is no terminal."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from dew.data.tokenize.merge import HeldOut
    from dew.data.tokenize.run import Request, Tokenizing

    words = parser().parse_args(argv)
    _require_numbers(words)
    work = Tokenizing(
        Request(
            sources=tuple(words.sources),
            out=Path(words.out).expanduser(),
            tokenizer=words.tokenizer,
            pattern=words.glob,
            column=words.column,
            document_end=words.document_end,
            held_out=HeldOut(fraction=words.val_fraction, documents=words.val_documents),
            workers=words.workers,
        )
    )
    if work.finished is not None:
        print(f"{words.out} holds this corpus already")
    if work.text_changed:
        print("the text is not what it was when an earlier run was stopped: beginning anew")
    with shown(work.size, len(work.parts)) as progress:
        pace = Pace(progress)
        result = work.run(pace)
    if work.finished is None:
        print(pace.told())
    for line in report(words, result.documents, result.empty, result.meta.ids):
        print(line)
    return SUCCESS


def report(words: argparse.Namespace, documents: int, empty: int, ids: dict[str, int]) -> Iterator[str]:
    """What was written and what reads it."""
    splits = ", ".join(f"{count:,} ids of {split}" for split, count in ids.items())
    left = f"; {empty:,} without text left out" if empty else ""
    yield f"{words.out}: {documents:,} documents{left}, {splits}"
    if "val" not in ids:
        yield "nothing is held out for validation; --val-documents N holds out N documents"
    yield following(words.out, words.tokenizer, ids)


def following(out: str, tokenizer: str, ids: dict[str, int]) -> str:
    """The command that trains on the folder, with the options that its splits call for.

    Args:
        out: the folder.
        tokenizer: its name.
        ids: of each split.
    """
    from dew.data.tokens.config import TokenWindows
    from dew.objectives.lm.config import LMRunConfig

    rows = {"train": LMRunConfig.starting_point().trainer.batch_size, "val": 1}
    longest = min((count - 1) // rows[split] for split, count in ids.items())
    if longest < 1:
        return "these are too few ids to train on: a split holds less than a batch of windows; give more text"
    command = ["dew", "train", "lm", "data:token-windows", "--data.path", out, "--tokenizer", tokenizer]
    if longest < TokenWindows().seq_len:
        command += ["--data.seq-len", str(longest)]
    if "val" not in ids:
        command += ["--trainer.eval-every", "None"]
    return f"next: {shlex.join(command)}"


class Pace:
    """Progress passed on, and the pace of what this call did itself.

    Args:
        progress: hears of every part.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._bytes = self._before = 0

    def __call__(self, counts: PartCounts, before: bool) -> None:
        if before:
            self._before += counts.size
        else:
            self._bytes += counts.size
        self._progress(counts, before)

    def told(self) -> str:
        """The bytes, the time and their ratio as one line."""
        seconds = time.monotonic() - self._began
        rate = self._bytes / 1e6 / max(seconds, 1e-9)
        known = f", beside {self._before / 1e6:,.1f} MB from before" if self._before else ""
        return f"{self._bytes / 1e6:,.1f} MB in {seconds:,.1f} s ({rate:,.1f} MB/s){known}"


@contextmanager
def shown(size: int, parts: int) -> Generator[Progress]:
    """A bar on a terminal, else a line now and then, on standard error."""
    if not sys.stderr.isatty():
        yield Lines(size, parts)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=size)
        held = 0

        def told(counts: PartCounts, before: bool) -> None:
            nonlocal held
            if before:
                held += counts.size
                bar.reset(task, completed=held)  # without a speed
            else:
                bar.advance(task, counts.size)

        yield told


class Lines:
    """Progress as lines.

    Args:
        size: bytes of all parts.
        parts: how many there are.
    """

    def __init__(self, size: int, parts: int) -> None:
        self._size = size
        self._parts = parts
        self._done = self._bytes = self._before = 0
        self._said = time.monotonic()

    def __call__(self, counts: PartCounts, before: bool) -> None:
        self._done += 1
        self._bytes += counts.size
        self._before += before
        if not before and time.monotonic() - self._said > EVERY_S:
            self._said = time.monotonic()
            known = f", {self._before} from before" if self._before else ""
            print(
                f"{self._done} of {self._parts} parts{known}: {100 * self._bytes / self._size:.0f} %",
                file=sys.stderr,
                flush=True,
            )


def _require_numbers(words: argparse.Namespace) -> None:
    if not 0 <= words.val_fraction < 1:
        raise UserError(f"--val-fraction {words.val_fraction} must be at least 0 and below 1")
    if words.val_documents is not None and words.val_documents < 1:
        raise UserError(
            f"--val-documents {words.val_documents} must be at least 1; --val-fraction 0 holds out none"
        )
    if words.workers < 1:
        raise UserError(f"--workers {words.workers} must be at least 1")


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew tokenize",
        allow_abbrev=False,
        description="Write text as ids that a run reads with data:token-windows or data:packed-tokens. A "
        "text file is one document, a line of a JSONL file and a row of a Parquet file another. Stopped or "
        "killed, the same command goes on where it was; the ids are the same for any number of workers.",
    )
    made.add_argument("sources", metavar="PATH", nargs="+", help="files and folders")
    made.add_argument("--out", metavar="DIR", required=True, help="the folder to write, new or empty")
    made.add_argument(
        "--tokenizer", metavar="NAME", default="byte", help="byte, or a tokenizer.json or its folder"
    )
    made.add_argument("--glob", metavar="PATTERN", default="**/*", help="which files of a folder (**/*)")
    made.add_argument("--column", metavar="NAME", help="of the text in JSONL and Parquet files (text)")
    made.add_argument(
        "--document-end",
        metavar="ID",
        type=int,
        help="id that ends every document; unset takes the tokenizer's end of text, if it has one",
    )
    chosen = made.add_mutually_exclusive_group()
    chosen.add_argument(
        "--val-fraction",
        metavar="PART",
        type=float,
        default=0.01,
        help="about this part of the documents is held out, by the hash of their text (0.01)",
    )
    chosen.add_argument("--val-documents", metavar="N", type=int, help="hold out N documents, by their hash")
    made.add_argument(
        "--workers", metavar="N", type=int, default=os.cpu_count() or 1, help="processes (one a core)"
    )
    return made
