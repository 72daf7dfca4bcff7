"""Tokenize all parts over processes, and put the corpus together. Killed at any moment, it goes on from
there.

Everything unfinished lies in `OUT/.parts`: `plan.json`, which a later run must agree with, and the committed
parts. `made_of.json`, which says what the corpus was made of, and `meta.json` are written last, and then
`.parts` is taken away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from dew.data.text.tokenizer import Tokenizer, load_tokenizer
from dew.data.tokenize.merge import HeldOut, merge_parts
from dew.data.tokenize.part import DRAFT, PartCounts, PartFiles, write_part, written
from dew.data.tokenize.plan import COLUMN, Part, plan_parts
from dew.data.tokens.files import file_identity
from dew.data.tokens.store import META, CorpusMeta, id_dtype
from dew.data.worker_life import end_with_parent

PARTS, PLAN, LOCK, MADE_OF = ".parts", "plan.json", "lock", "made_of.json"
UNFINISHED = {PARTS, MADE_OF, "train.bin", "val.bin", f"{META}.draft"}
"""What a run that was stopped leaves in its folder."""

type Progress = Callable[[PartCounts, bool], None]
"""Hears of every finished part, and whether an earlier run had finished it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        sources: files and folders.
        out: the folder to write.
        tokenizer: its name, as a run's `tokenizer`.
        pattern: which files of a folder.
        column: of the text in JSONL and Parquet files; None takes `text`.
        document_end: the id appended to every document; None takes the tokenizer's own, if it has one.
        held_out: which documents are for validation.
        workers: processes; 1 works in this one.
    """

    sources: tuple[str, ...]
    out: Path
    tokenizer: str
    pattern: str
    column: str | None
    document_end: int | None
    held_out: HeldOut
    workers: int


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        meta: of the corpus.
        documents: with text.
        empty: without, left out.
    """

    meta: CorpusMeta
    documents: int
    empty: int


class Tokenizing:
    """A request that is checked and can be run.

    Attributes:
        finished: what came of it, where the folder holds the corpus already.
        text_changed: an earlier run of the request was stopped, and its sources hold other text now: `run`
            begins anew.

    Args:
        request: what is asked for.

    Raises:
        FileNotFoundError: a source or the tokenizer.
        ValueError: sources that cannot be read, a folder that holds something else, or the parts of another
            request.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.tokenizer: Tokenizer = load_tokenizer(request.tokenizer)
        self.end = self.tokenizer.eos_id if request.document_end is None else request.document_end
        if self.end is not None and not 0 <= self.end < self.tokenizer.vocab_size:
            raise ValueError(
                f"--document-end {self.end} must be an id from 0 to {self.tokenizer.vocab_size - 1}"
            )
        _require_folder(request.out)
        self.parts = plan_parts(request.sources, request.pattern, request.column, without=request.out)
        self._column = request.column or COLUMN
        self._folder = request.out / PARTS
        self.finished = self._require_own_corpus()
        self.text_changed = self._require_own_parts()

    @property
    def _made_of(self) -> dict[str, object]:
        return {**self._identity(), "held_out": asdict(self._request.held_out)}

    def _require_own_corpus(self) -> Result | None:
        if not (self._request.out / META).exists():
            return None
        sheet = self._request.out / MADE_OF
        had = _read_sheet(sheet, self._request.out) if sheet.exists() else {}
        counts = {name: cast("int", had.pop(name, 0)) for name in ("documents", "empty")}
        if had != self._made_of:
            raise ValueError(
                f"--out {self._request.out} holds a finished corpus of other text or options; read it, or "
                "name "
                "another folder"
            )
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was killed at its last step
        return Result(CorpusMeta.read(self._request.out), **counts)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def run(self, progress: Progress) -> Result:
        """Tokenize what is not done yet, and write the corpus.

        Raises:
            ValueError: text that cannot be read, or another run that writes to the same folder.
            ChildProcessError: a worker died.
        """
        if self.finished is not None:
            return self.finished
        self._folder.mkdir(parents=True, exist_ok=True)
        with _sole(self._folder / LOCK):
            self._begin()
            counts = self._finished(progress)
            left = [part for part in self.parts if part.number not in counts]
            for number, found in self._work(left):
                counts[number] = found
                progress(found, False)
            documents, empty = (
                sum(getattr(each, name) for each in counts.values()) for name in ("documents", "empty")
            )
            with written(self._request.out / MADE_OF) as file:
                told = {**self._made_of, "documents": documents, "empty": empty}
                file.write(json.dumps(told, indent=2).encode() + b"\n")
            meta = merge_parts(
                self._folder,
                [part.number for part in self.parts],
                self._request.out,
                tokenizer=self.tokenizer,
                end=self.end,
                held_out=self._request.held_out,
            )
        shutil.rmtree(self._folder)
        return Result(meta, documents, empty)

    def _finished(self, progress: Progress) -> dict[int, PartCounts]:
        dtype = id_dtype(self.tokenizer.vocab_size)
        found: dict[int, PartCounts] = {}
        for part in self.parts:
            counts = PartFiles(self._folder, part.number, dtype).counts()
            if counts is not None:
                found[part.number] = counts
                progress(counts, True)
        return found

    def _work(self, left: Sequence[Part]) -> Iterator[tuple[int, PartCounts]]:
        workers = min(self._request.workers, len(left))
        if workers <= 1:
            for part in left:
                yield (
                    part.number,
                    write_part(self._folder, part, self.tokenizer, column=self._column, end=self.end),
                )
            return
        settings = (self._request.tokenizer, str(self._folder), self._column, self.end, workers)
        spawned = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, spawned, initializer=_begin, initargs=settings)
        try:
            running = {pool.submit(_write, part): part.number for part in left}
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker was killed, as for want of memory; give the same command to go on, with fewer "
                "--workers"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)

    def _identity(self) -> Mapping[str, object]:
        paths = dict.fromkeys(piece.path for part in self.parts for piece in part.pieces)
        told = json.dumps([[asdict(part) for part in self.parts], [file_identity(path) for path in paths]])
        return {
            "text": hashlib.blake2b(told.encode(), digest_size=16).hexdigest(),
            "tokenizer": self.tokenizer.fingerprint(),
            "column": self._column,
            "document_end": self.end,
        }

    @property
    def _plan(self) -> dict[str, object]:
        return {**self._identity(), "sources": list(self._request.sources)}

    def _require_own_parts(self) -> bool:
        """Whether the beginnings in the folder are those of the same request over other text."""
        plan = self._folder / PLAN
        if not plan.exists():
            return False
        had, asked = _read_sheet(plan, self._folder), self._plan
        other = [name for name in asked if asked[name] != had.get(name)]
        if other and other != ["text"]:
            raise ValueError(
                f"{self._folder} holds the beginnings of another corpus ({', '.join(other)} differs); "
                "give the "
                f"command that began it, delete {self._folder}, or name another --out"
            )

        return bool(other)

    def _begin(self) -> None:
        lock = self._folder / LOCK
        for file in self._folder.glob("*" if self.text_changed else f"*{DRAFT}"):
            if file != lock:
                file.unlink()
        with written(self._folder / PLAN) as file:
            file.write(json.dumps(self._plan).encode())


def _read_sheet(sheet: Path, folder: Path) -> dict[str, object]:
    try:
        return dict(json.loads(sheet.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{sheet} is damaged ({error}); delete the folder {folder}, and the same command begins anew"
        ) from error


def _require_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: its folder {out.absolute().parent} is not there; make it first")
    if not out.is_dir() or (out / META).exists():
        return
    drafts = {each.name for each in out.glob(f"*{DRAFT}")}
    others = sorted({each.name for each in out.iterdir()} - UNFINISHED - drafts)
    if others:
        raise ValueError(f"--out {out} holds {others[0]}; name a new or an empty folder")


@contextlib.contextmanager
def _sole(lock: Path) -> Generator[None]:
    """Hold `lock`, which the system lets go of when the process ends, however it ends."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another dew tokenize writes to {lock.parent.parent}; wait for it") from error
        yield


_worker: tuple[Tokenizer, Path, str, int | None] | None = None
"""What a worker process tokenizes with."""


def _begin(tokenizer: str, folder: str, column: str, end: int | None, workers: int) -> None:
    global _worker
    end_with_parent(0, workers)
    os.environ["RAYON_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))
    _worker = (load_tokenizer(tokenizer), Path(folder), column, end)


def _write(part: Part) -> PartCounts:
    assert _worker is not None, "the pool's initializer ran before"
    tokenizer, folder, column, end = _worker
    return write_part(folder, part, tokenizer, column=column, end=end)
