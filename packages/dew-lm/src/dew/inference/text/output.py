"""Responses into a file: whole ones, whatever ends the writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import FileIO


def write_responses(path: str, groups: Iterable[Sequence[str]], kept: Callable[[int], str]) -> int:
    """Write the lines of every group to a new file, as each is drawn.

    Args:
        path: of the file, which is not there yet.
        groups: the lines of one prompt's responses.
        kept: what to say to who stops it, given the number of lines written.

    Returns:
        The lines written.

    Raises:
        KeyboardInterrupt: again, with `kept`.
        OSError: the disk is full, or another reason that ends the file, with `kept`; its last line is whole.
    """
    written = 0
    try:
        with open(path, "xb", buffering=0) as file:
            for group in groups:
                try:
                    _append(file, "".join(group).encode())
                except OSError as error:
                    raise OSError(f"{path}: {error.strerror}; {kept(written)}") from error
                written += len(group)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(kept(written)) from stop
    return written


def _append(file: FileIO, data: bytes) -> None:
    """Write all of `data`, or nothing."""
    whole, left = file.tell(), memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except BaseException:
        file.truncate(whole)
        raise
