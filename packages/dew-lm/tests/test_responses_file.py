"""A file of responses holds whole ones, and a file of prompts is read as it was meant."""

from __future__ import annotations

import resource
from contextlib import contextmanager

import pytest

from dew.inference.text.asking import file_prompts
from dew.inference.text.output import write_responses


@contextmanager
def room_for(size):
    """Files cannot grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kept(lines):
    return f"{lines} are kept"


def test_a_full_disk_leaves_whole_lines_and_says_how_many(tmp_path):
    path, line = tmp_path / "rows.jsonl", "x" * 99 + "\n"
    with room_for(1050), pytest.raises(OSError, match=r"rows\.jsonl: File too large; 10 are kept"):
        write_responses(str(path), ([line, line] for _ in range(8)), kept)
    assert path.read_text() == line * 10


def test_an_interrupt_says_how_many_are_kept(tmp_path):
    def groups():
        yield ["a\n"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="1 are kept"):
        write_responses(str(tmp_path / "rows"), groups(), kept)
    assert (tmp_path / "rows").read_text() == "a\n"


def test_what_fails_while_drawing_is_no_fault_of_the_file(tmp_path):
    def groups():
        yield ["a\n"]
        raise ConnectionError("the device is gone")

    with pytest.raises(ConnectionError, match=r"^the device is gone$"):
        write_responses(str(tmp_path / "rows"), groups(), kept)
    assert (tmp_path / "rows").read_text() == "a\n"


@pytest.mark.parametrize(("name", "text"), [("a.txt", "one"), ("a.jsonl", '"one"'), ("a.json", '["one"]')])
def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path, name, text):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    (asked,) = file_prompts(str(tmp_path / name))
    assert asked.text == "one"
