"""`dew tokenize`: ids and splits, any number of workers, killed and continued, refused."""

import fcntl
import hashlib
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.cli import main
from dew.data.text import HFTokenizer
from dew.data.tokenize import command
from dew.data.tokenize import run as tokenize_run
from dew.data.tokenize.merge import HeldOut
from dew.data.tokenize.part import PartCounts
from dew.data.tokenize.plan import part_bytes
from dew.data.tokens import CorpusWriter, TokenWindows
from dew.data.tokens.store import CorpusMeta

TOKENIZER = str(Path(__file__).with_name("golden") / "chat" / "byte_level")
TEXTS = [f"Document {n}: " + "the model answers, and " * (n % 5) + chr(0x41 + n) * (n % 3) for n in range(40)]
FIRST_LINE = len(json.dumps({"id": 0, "text": TEXTS[0]})) + 1
FILES = ["meta.json", "train.bin", "val.bin"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("dew.data.tokenize.plan.part_bytes", lambda total: 700)


def jsonl(path, texts=TEXTS, column="text"):
    path.write_text("".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(texts)))
    return path


def tokenize(*words, out):
    return main(["tokenize", *map(str, words), "--out", str(out), "--workers", "1"])


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def documents(folder, split, end=0):
    ids = np.fromfile(folder / f"{split}.bin", CorpusMeta.read(folder).dtype).tolist()
    found, held = [], []
    for token in ids:
        held.append(token)
        if token == end:
            found.append(held)
            held = []
    assert not held
    return found


def test_the_folder_is_what_the_writer_writes_of_the_same_documents(tmp_path):
    assert (
        tokenize(
            jsonl(tmp_path / "a.jsonl"), "--tokenizer", TOKENIZER, "--val-fraction", 0.2, out=tmp_path / "c"
        )
        == 0
    )
    tokenizer = HFTokenizer(TOKENIZER)
    wholes = [[*tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
    hashes = np.asarray([hash_of(text) for text in TEXTS], np.uint64)
    held = HeldOut(fraction=0.2).of(hashes)
    (tmp_path / "w").mkdir()
    names = {"tokenizer": TOKENIZER, "tokenizer_fingerprint": tokenizer.fingerprint()}
    with CorpusWriter(tmp_path / "w", **names, vocab_size=tokenizer.vocab_size, document_end=1) as writer:
        for split, wanted in (("train", False), ("val", True)):
            for document, out in zip(wholes, held, strict=True):
                if out == wanted:
                    writer.append(split, document)
        writer.finish()
    assert contents(tmp_path / "c") == contents(tmp_path / "w") and set(contents(tmp_path / "w")) == set(
        FILES
    )
    assert not (tmp_path / "c" / ".parts").exists()


def hash_of(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def test_files_of_every_kind_give_their_documents_in_order(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.txt").write_text(TEXTS[0])
    jsonl(folder / "c.jsonl", TEXTS[1:20])
    pq.write_table(pa.table({"text": TEXTS[20:]}), folder / "d.parquet", row_group_size=3)
    assert tokenize(folder, "--document-end", 0, "--val-fraction", 0, out=tmp_path / "c") == 0
    assert documents(tmp_path / "c", "train") == [[*text.encode(), 0] for text in TEXTS]
    assert not (tmp_path / "c" / "val.bin").exists()


@pytest.mark.parametrize("size", [7, 50, 97, FIRST_LINE, 100_000])
def test_every_line_stands_once_wherever_the_file_is_cut(tmp_path, monkeypatch, size):
    monkeypatch.setattr("dew.data.tokenize.plan.part_bytes", lambda total: size)
    path = jsonl(tmp_path / "a.jsonl", TEXTS[:6])
    path.write_text(path.read_text() + "\n" + json.dumps({"text": ""}))
    tokenize(path, "--document-end", 0, "--val-documents", 3, out=tmp_path / "c")
    found = documents(tmp_path / "c", "train") + documents(tmp_path / "c", "val")
    assert sorted(found) == sorted([*text.encode(), 0] for text in TEXTS[:6])
    assert len(documents(tmp_path / "c", "val")) == 3


@pytest.mark.parametrize(("total", "size"), [(5, 1 << 20), (1 << 33, 1 << 24), (1 << 40, 64 << 20)])
def test_parts_are_many_and_neither_tiny_nor_huge(total, size):
    assert part_bytes(total) == size


def test_copies_of_a_document_are_held_out_together(tmp_path):
    tokenize(
        jsonl(tmp_path / "a.jsonl", TEXTS * 2), "--document-end", 0, "--val-fraction", 0.3, out=tmp_path / "c"
    )
    train, val = (documents(tmp_path / "c", split) for split in ("train", "val"))
    assert not {bytes(each) for each in train} & {bytes(each) for each in val} and 6 < len(val) < 40


def test_a_number_of_documents_is_held_out_by_the_smallest_hashes():
    hashes = np.asarray([5, 1, 2**64 - 1, 2], np.uint64)
    assert HeldOut(fraction=0.5, documents=2).of(hashes).tolist() == [False, True, False, True]
    assert HeldOut(fraction=0.5).of(hashes).tolist() == [True, True, False, True]


def test_copies_of_the_last_held_out_document_are_held_out_too(tmp_path):
    hashes = np.asarray([5, 1, 5, 2, 5], np.uint64)
    assert HeldOut(fraction=0, documents=2).of(hashes).tolist() == [False, True, False, True, False]
    assert HeldOut(fraction=0, documents=3).of(hashes).all()
    path = jsonl(tmp_path / "a.jsonl", TEXTS * 2)
    tokenize(path, "--document-end", 0, "--val-documents", 5, out=tmp_path / "c")
    train, val = (documents(tmp_path / "c", split) for split in ("train", "val"))
    assert not {bytes(each) for each in train} & {bytes(each) for each in val} and len(val) == 6


def test_no_document_and_none_to_train_on_are_told_apart(tmp_path, capsys):
    empty = jsonl(tmp_path / "empty.jsonl", ["", ""])
    assert "no source holds a document with text" in refused(capsys, empty, out=tmp_path / "c")
    one = jsonl(tmp_path / "one.jsonl", ["only"])
    said = refused(capsys, one, "--val-documents", 1, out=tmp_path / "d")
    assert "all 1 documents would be held out for validation" in said


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, workers):
    words = [str(jsonl(tmp_path / "a.jsonl")), "--tokenizer", TOKENIZER, "--val-documents", "4"]
    tokenize(*words, out=tmp_path / "one")
    assert main(["tokenize", *words, "--out", str(tmp_path / "many"), "--workers", str(workers)]) == 0
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


KILLED = """
import os, signal, sys
from dew.data.tokenize import command, plan
plan.part_bytes = lambda total: 700
class Killing(command.Lines):
    def __call__(self, counts, before):
        super().__call__(counts, before)
        if self._done == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
command.Lines = Killing
command.main(sys.argv[2:])
"""


def test_killed_it_goes_on_where_it_was_to_the_same_bytes(tmp_path, monkeypatch, capsys):
    words = [str(jsonl(tmp_path / "a.jsonl")), "--tokenizer", TOKENIZER, "--workers", "1", "--out"]
    for after in (1, 3):
        dead = subprocess.run([sys.executable, "-c", KILLED, str(after), *words, str(tmp_path / "c")])
        assert dead.returncode == -signal.SIGKILL and not (tmp_path / "c" / "meta.json").exists()
    (tmp_path / "c" / ".parts" / "00001.ids").write_bytes(b"")  # a disk that lost what it promised to keep
    begun = []
    write = tokenize_run.write_part
    monkeypatch.setattr(
        tokenize_run,
        "write_part",
        lambda folder, part, *a, **k: begun.append(part.number) or write(folder, part, *a, **k),
    )
    assert main(["tokenize", *words, str(tmp_path / "c")]) == 0
    assert begun == [1, 3, 4]
    assert main(["tokenize", *words, str(tmp_path / "whole")]) == 0
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_stopped_while_it_merges_it_merges_again(tmp_path, monkeypatch):
    words = (jsonl(tmp_path / "a.jsonl"), "--document-end", "0")
    monkeypatch.setattr(CorpusWriter, "finish", lambda self: (_ for _ in ()).throw(OSError("full")))
    assert tokenize(*words, "--val-documents", 5, out=tmp_path / "c") == 2
    assert (tmp_path / "c" / "val.bin").exists()
    monkeypatch.undo()
    monkeypatch.setattr("dew.data.tokenize.plan.part_bytes", lambda total: 700)
    monkeypatch.setattr(tokenize_run, "write_part", lambda *_, **__: pytest.fail("tokenized again"))
    assert tokenize(*words, "--val-fraction", 0, out=tmp_path / "c") == 0
    assert not (tmp_path / "c" / "val.bin").exists() and len(documents(tmp_path / "c", "train")) == 40


def refused(capsys, *words, out):
    assert tokenize(*words, out=out) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_what_cannot_work_is_refused_in_one_line_before_work(tmp_path, capsys):
    good, out = jsonl(tmp_path / "a.jsonl"), tmp_path / "c"
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "a.txt.gz").write_bytes(b"packed")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "n.parquet")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    for words, place, message in (
        (("nowhere",), out, "is not there"),
        ((tmp_path / "binary",), out, "is a binary file"),
        ((tmp_path / "a.txt.gz",), out, "is packed; unpack it"),
        ((good, "--column", "body"), out, "line 1 of"),
        ((tmp_path / "n.parquet",), out, "has columns n and no 'text'"),
        ((tmp_path / "n.parquet", "--column", "n"), out, "holds int64 and no text"),
        ((good, "--tokenizer", "nothing"), out, "tokenizer=nothing is not there"),
        ((good, "--document-end", 256), out, "--document-end 256 must be an id from 0 to 255"),
        ((good, "--val-fraction", 1), out, "--val-fraction 1.0 must be at least 0 and below 1"),
        ((good, "--val-documents", 0), out, "--val-documents 0 must be at least 1"),
        ((good,), tmp_path / "full", "holds notes.txt; name a new or an empty folder"),
        ((good,), tmp_path / "none" / "c", "is not there; make it first"),
    ):
        assert message in refused(capsys, *words, out=place)
    assert not out.exists()


def test_messages_name_what_the_commands_user_wrote(tmp_path, capsys):
    (tmp_path / "late").write_bytes(b"a" * 9000 + b"\0")
    (tmp_path / "latin").write_bytes(b"a" * 9000 + b"\xff")
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").write_bytes(b"")
    for place, words in (
        (("nowhere",), "PATH nowhere is not there"),
        ((tmp_path, "--glob", "*.md"), "--glob '*.md' matches no file below"),
        ((tmp_path / "blank",), "holds only empty files that match --glob '**/*'"),
        ((tmp_path / "late",), "name text files, as by --glob '**/*.txt'"),
        ((tmp_path / "latin",), "or leave it out by --glob"),
    ):
        said = refused(capsys, *place, out=tmp_path / f"out{len(words)}")
        assert words in said and "data." not in said


def test_a_finished_folder_is_kept_and_the_same_command_has_nothing_to_do(tmp_path, capsys, monkeypatch):
    good = jsonl(tmp_path / "a.jsonl")
    tokenize(good, out=tmp_path / "c")
    before, said = contents(tmp_path / "c"), capsys.readouterr().out
    monkeypatch.setattr(tokenize_run, "merge_parts", lambda *_, **__: pytest.fail("written again"))
    assert tokenize(good, out=tmp_path / "c") == 0
    again = capsys.readouterr().out
    assert "holds this corpus already" in again and said.splitlines()[1] in again
    for option in (("--val-fraction", 0.5), ("--document-end", 7)):
        said = refused(capsys, good, *option, out=tmp_path / "c")
        assert "holds a finished corpus of other text or options" in said
    assert contents(tmp_path / "c") == before


def test_the_beginnings_of_another_corpus_are_kept(tmp_path, capsys):
    good = jsonl(tmp_path / "a.jsonl")
    (tmp_path / "d" / ".parts").mkdir(parents=True)
    (tmp_path / "d" / ".parts" / "plan.json").write_text('{"tokenizer": "other", "column": "text"}')
    said = refused(capsys, good, out=tmp_path / "d")
    assert "holds the beginnings of another corpus (text, tokenizer, sources differs)" in said


def test_a_file_that_was_mended_is_tokenized_by_the_same_command(tmp_path, capsys):
    texts = tmp_path / "texts"
    texts.mkdir()
    jsonl(texts / "a.jsonl")
    (texts / "b.jsonl").write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n')
    words = texts, "--glob", "*.jsonl"
    assert tokenize(*words, out=tmp_path / "c") == 2
    jsonl(texts / "b.jsonl", ["café"])
    capsys.readouterr()
    assert tokenize(*words, out=tmp_path / "c") == 0
    assert "beginning anew" in capsys.readouterr().out
    assert tokenize(*words, out=tmp_path / "d") == 0
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    assert not (tmp_path / "c" / ".parts").exists()


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa b\xef\xbb\xbfc")
    assert tokenize(tmp_path / "a.txt", "--val-fraction", 0, "--document-end", 0, out=tmp_path / "c") == 0
    assert (tmp_path / "c" / "train.bin").read_bytes() == b"a b\xef\xbb\xbfc\0"


def test_two_do_not_write_to_one_folder(tmp_path, capsys):
    (tmp_path / "c" / ".parts").mkdir(parents=True)
    with (tmp_path / "c" / ".parts" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another dew tokenize writes to" in refused(
            capsys, jsonl(tmp_path / "a.jsonl"), out=tmp_path / "c"
        )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "the line at byte 25 of .*is no JSON"),
        ('{"text": 3}', r"the line at byte 25 of .*holds no text in 'text' \(it holds 3 there\)"),
        ('{"text": "a \\ud83d"}', "the line at byte 25 of .*holds half a surrogate pair at character 2"),
    ],
)
def test_a_bad_line_is_named_and_what_was_done_is_kept(tmp_path, capsys, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a first line"}\n' + line + "\n")
    assert tokenize(path, out=tmp_path / "c") == 2
    assert re.search(message, capsys.readouterr().err)


def hint(tmp_path, capsys, *held):
    """The words of the command that `dew tokenize` ends with."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number}.md").write_text(f"# Page {number}\n" + "Words of a page.\n")
    tokenize(texts, "--glob", "*.md", *held, out=tmp_path / "the corpus")
    *_, last = capsys.readouterr().out.splitlines()
    return shlex.split(last.removeprefix("next: "))


def test_the_command_it_ends_with_runs_as_it_stands(tmp_path, capsys):
    dew, *words = hint(tmp_path, capsys, "--val-fraction", 0)
    sizes = json.dumps({"hidden_size": 8, "num_layers": 1, "num_heads": 1})
    run = ["--model.config", sizes, "--trainer.checkpoint-dir", str(tmp_path / "r")]
    short = ["--trainer.steps", "1", "--sample-tokens", "0"]
    assert (dew, main([*words, *run, *short])) == ("dew", 0)
    assert "ids in" in capsys.readouterr().out


def test_with_a_validation_split_the_command_leaves_its_passes_and_fits_the_smaller_one(tmp_path, capsys):
    *start, path, _, tokenizer, _, longest = hint(tmp_path, capsys, "--val-documents", 1)
    assert start == ["dew", "train", "lm", "data:token-windows", "--data.path"] and tokenizer == "byte"
    ids = CorpusMeta.read(tmp_path / "the corpus").ids
    assert int(longest) == min((ids["train"] - 1) // 8, ids["val"] - 1)
    data = TokenWindows(path=path, seq_len=int(longest)).load(batch=8)
    assert data.records >= 8 and data.val is not None


def test_too_few_ids_have_no_command_to_train_on_them(tmp_path, capsys):
    tokenize(jsonl(tmp_path / "a.jsonl", ["few", "one"]), "--val-documents", 1, out=tmp_path / "c")
    assert "too few ids to train on" in capsys.readouterr().out


def test_the_pace_is_that_of_the_work_done_now(monkeypatch):
    now = iter([10.0, 12.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    heard = []
    pace = command.Pace(lambda counts, before: heard.append((counts.size, before)))
    for size, before in ((6_000_000, True), (3_000_000, False), (1_000_000, False)):
        pace(PartCounts(documents=1, empty=0, ids=1, size=size), before)
    assert pace.told() == "4.0 MB in 2.0 s (2.0 MB/s), beside 6.0 MB from before"
    assert heard == [(6_000_000, True), (3_000_000, False), (1_000_000, False)]


def test_a_file_that_several_sources_lead_to_stands_once_and_loops_end(tmp_path):
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("one")
    (folder / "sub" / "c.txt").write_text("two")
    (folder / "loop").symlink_to(".")
    (folder / "sub" / "up").symlink_to("..")
    (folder / "a.txt").symlink_to("b.txt")
    words = (folder, folder / "sub" / "c.txt", folder / "a.txt", "--document-end", 0, "--val-fraction", 0)
    assert tokenize(*words, out=tmp_path / "c") == 0
    assert documents(tmp_path / "c", "train") == [[*b"one", 0], [*b"two", 0]]


def test_the_output_inside_the_input_is_no_input(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("some text")
    for said in ("1 documents", "holds this corpus already"):
        assert tokenize(tmp_path, "--val-fraction", 0, out=tmp_path / "ids") == 0
        assert said in capsys.readouterr().out
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ids").symlink_to(tmp_path / "ids")
    assert "is a link to a folder" in refused(capsys, tmp_path / "b", out=tmp_path / "d")


@pytest.mark.parametrize("kind", ["lines", "text"])
def test_a_document_end_that_a_text_holds_is_refused_with_the_place(tmp_path, capsys, kind):
    path = tmp_path / ("a.jsonl" if kind == "lines" else "a.txt")
    path.write_text('{"text": "fine"}\n{"text": "bad\\u0000"}\n' if kind == "lines" else "line\nline")
    place = f"the line at byte 17 of {path}" if kind == "lines" else str(path)
    end = 0 if kind == "lines" else 10
    said = refused(capsys, path, "--document-end", end, out=tmp_path / "c")
    assert f"--document-end {end}: {place} holds this id in its text" in said
    assert not (tmp_path / "c" / "train.bin").exists()


def test_a_spelled_end_of_text_of_the_tokenizers_own_ends_a_document(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["one</s>two"])
    assert tokenize(path, "--tokenizer", TOKENIZER, "--val-fraction", 0, out=tmp_path / "c") == 0
    assert len(documents(tmp_path / "c", "train", end=1)) == 2


def stopped(tmp_path, monkeypatch):
    """The folder of a run that ended after its parts, and the words that go on."""
    words = (jsonl(tmp_path / "a.jsonl"), "--document-end", "0")
    with monkeypatch.context() as patch:
        patch.setattr(CorpusWriter, "finish", lambda self: (_ for _ in ()).throw(OSError("full")))
        assert tokenize(*words, out=tmp_path / "c") == 2
    return tmp_path / "c" / ".parts", words


def test_a_part_that_changed_since_is_tokenized_again(tmp_path, monkeypatch):
    parts, words = stopped(tmp_path, monkeypatch)
    changed = parts / "00001.ids"
    changed.write_bytes(changed.read_bytes()[::-1])
    assert tokenize(*words, out=tmp_path / "c") == 0
    assert tokenize(*words, out=tmp_path / "whole") == 0
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "fix"), [("00000.json", "delete it, and"), ("plan.json", "delete the folder")]
)
def test_a_torn_sheet_is_named_with_what_to_do(tmp_path, monkeypatch, capsys, name, fix):
    parts, words = stopped(tmp_path, monkeypatch)
    capsys.readouterr()
    (parts / name).write_bytes((parts / name).read_bytes()[:7])
    said = refused(capsys, *words, out=tmp_path / "c")
    assert str(parts / name) in said and fix in said


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_null_is_no_text_and_is_left_out_and_counted(tmp_path, capsys, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        jsonl(path, [None, "one", None])
    else:
        pq.write_table(pa.table({"text": [None, "one", None]}), path)
    assert tokenize(path, "--document-end", 0, "--val-fraction", 0, out=tmp_path / "c") == 0
    assert "1 documents; 2 without text left out" in capsys.readouterr().out
    assert documents(tmp_path / "c", "train") == [[*b"one", 0]]


def test_a_column_of_text_files_and_a_shortened_option_are_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text")
    said = refused(capsys, tmp_path / "a.txt", "--column", "body", out=tmp_path / "c")
    assert "--column body names the text of records" in said
    assert tokenize(tmp_path / "a.txt", "--colum", "body", out=tmp_path / "c") == 2
    assert "unrecognized arguments: --colum" in capsys.readouterr().err


def test_a_finished_folder_with_torn_ids_says_how_to_write_it_again(tmp_path, capsys):
    path = jsonl(tmp_path / "a.jsonl")
    tokenize(path, out=tmp_path / "c")
    (tmp_path / "c" / "train.bin").write_bytes(b"torn")
    said = refused(capsys, path, out=tmp_path / "c")
    assert f"delete the folder {tmp_path / 'c'} and write it again" in said
