"""Which text a run reads: the files under a path, their first bytes up to a limit, and the held-out part.

A corpus is a list of spans, pieces of files by byte offsets. Cuts inside a file fall after a line end where
one is near, else before a space, else between two characters.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from dew.data.text.walk import linked_folders, matching_files

STDLIB_BYTES = 8_000_000
STDLIB_LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}
CUT_SEARCH = 1 << 16
"""Bytes before a wished cut in which a line end or a space is looked for."""


@dataclass(frozen=True)
class Words:
    """How the user names what is read, for messages.

    Attributes:
        path: the file or folder.
        glob: which files of a folder.
        sign: between such a word and its value.
    """

    path: str
    glob: str
    sign: str


RUN = Words(path="data.path", glob="data.glob", sign="=")
"""The words of a run's configuration."""


@dataclass(frozen=True)
class Span:
    """Bytes `start..stop-1` of a file.

    Attributes:
        path: the file.
        name: its path relative to the corpus, with `/`.
        start: first byte.
        stop: end of the bytes.
    """

    path: Path
    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Corpus:
    """The two splits: `train` and `val`, each in the order of their names."""

    train: tuple[Span, ...]
    val: tuple[Span, ...]


def standard_library() -> list[Span]:
    """Python's own library sources without tests and idlelib, sorted by name.

    Raises:
        FileNotFoundError: this Python ships no sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if each not in STDLIB_LEFT_OUT and not each.startswith(".")]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    if not files:
        raise FileNotFoundError(f"{root} holds no Python sources; name text of your own as data.path")
    return _spans(files, root)


def text_files(path: Path, pattern: str, words: Words = RUN, *, without: Path | None = None) -> list[Span]:
    """The file `path`, or the files below the folder `path` that match `pattern`, sorted by name.

    Hidden files and folders, links to folders and empty files of a folder are passed over. A file that links
    lead to is taken once.

    Args:
        path: a file or a folder.
        pattern: which files of a folder.
        words: how messages name the two.
        without: a folder that is passed over.

    Raises:
        FileNotFoundError: nothing is there, or nothing matches.
        PermissionError: a folder that may not be read.
        ValueError: only empty files.
    """
    asked = f"{words.path}{words.sign}{path}"
    if path.is_file():
        files, root = [path], path.parent
    elif path.is_dir():
        files, root = _matching(path, pattern, words, without), path
    else:
        raise FileNotFoundError(f"{asked} is not there; name a text file or a folder of text files")
    spans = _spans(files, root)
    if not spans:
        matching = f"{words.glob}{words.sign}{pattern!r}"
        what = "is empty" if path.is_file() else f"holds only empty files that match {matching}"
        raise ValueError(f"{asked} {what}; name text to train on")
    return spans


def first_bytes(spans: list[Span], limit: int | None) -> list[Span]:
    """The first `limit` bytes of `spans`, in order; the last one is cut. None keeps all."""
    kept: list[Span] = []
    left = limit if limit is not None else sum(span.size for span in spans)
    for span in spans:
        if left <= 0:
            break
        span = span if span.size <= left else replace(span, stop=cut_before(span, span.start + left))
        kept.append(span)
        left = left - span.size if span.size else 0
    return [span for span in kept if span.size]


def hold_out(spans: list[Span], fraction: float, *, least: int = 0) -> Corpus:
    """Hold out about `fraction` of the bytes, and no fewer than `least` where that leaves half of them.

    Whole files are taken in the order of their names' hashes as long as they fit, so adding a file moves few
    others between the splits. Where they come to less than half of what is wanted (one file, or one that
    outweighs the rest), the tail of the largest remaining file makes up the difference.
    """
    total = sum(span.size for span in spans)
    wanted = max(int(total * fraction), min(least, total // 2)) if fraction else 0
    val: list[Span] = []
    taken = 0
    for span in sorted(spans, key=lambda each: hashlib.sha256(each.name.encode()).digest()):
        if taken + span.size <= wanted:
            val.append(span)
            taken += span.size
    names = {span.name for span in val}
    train = [span for span in spans if span.name not in names]
    if 2 * taken < wanted:
        largest = max(train, key=lambda each: each.size)
        cut = cut_before(largest, largest.stop - (wanted - taken))
        train = [replace(span, stop=cut) if span is largest else span for span in train]
        val.append(replace(largest, start=cut))
    return Corpus(
        train=tuple(span for span in train if span.size),
        val=tuple(sorted((span for span in val if span.size), key=lambda each: each.name)),
    )


def cut_before(span: Span, offset: int) -> int:
    """The last good place at or before byte `offset` of `span` to cut its text in two."""
    start = max(span.start, offset - CUT_SEARCH)
    with open_text(span.path) as file:
        file.seek(start)
        window = file.read(offset - start + 1)
    before = window[: offset - start]
    line = before.rfind(b"\n")
    if line >= 0:
        return start + line + 1
    space = before.rfind(b" ")
    if space > 0:
        return start + space
    at = len(before)
    while at > 0 and at < len(window) and window[at] & 0xC0 == 0x80:
        at -= 1
    return start + at


def open_text(path: Path, words: Words = RUN) -> IO[bytes]:
    """`path` opened for reading bytes; a message names the file's pattern as in `words`.

    Raises:
        PermissionError: the file may not be read; the message says what to do.
    """
    try:
        return path.open("rb")
    except PermissionError as error:
        raise PermissionError(
            f"{path} may not be read by this user; change its permissions (chmod +r) or leave it out "
            f"by {words.glob}"
        ) from error


def _matching(root: Path, pattern: str, words: Words, without: Path | None) -> list[Path]:
    _require_readable(root, words)
    files = matching_files(root, pattern, without=without)
    if not files:
        links = linked_folders(root)
        if matching_files(root, "**/*", without=without):
            way = "'**/*' takes every file"
        elif links:
            way = f"{links[0]} is a link to a folder, which is not followed; name what it leads to as "
            way += words.path
        else:
            way = "it holds none"
        raise FileNotFoundError(f"{words.glob}{words.sign}{pattern!r} matches no file below {root}; {way}")
    return files


def _spans(files: list[Path], root: Path) -> list[Span]:
    named = sorted((file.relative_to(root).as_posix(), file) for file in files)
    sized = ((name, file, file.stat().st_size) for name, file in named)
    return [Span(file, name, 0, size) for name, file, size in sized if size]


def _require_readable(root: Path, words: Words) -> None:
    _require_access(root, words)
    for folder, folders, _ in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for each in folders:
            if not Path(folder, each).is_symlink():
                _require_access(Path(folder, each), words)


def _require_access(folder: Path, words: Words) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(
            f"{folder} may not be read by this user; change its permissions or name another {words.path}"
        )
