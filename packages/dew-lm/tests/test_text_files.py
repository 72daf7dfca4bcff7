"""Text files as training data: what is read, how it is split, cached and refused."""

import glob
import os
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dew.data import DataPartition
from dew.data.text import ByteTokenizer, HFTokenizer, TextFiles
from dew.data.text import cache as text_cache
from dew.data.text.corpus import first_bytes, hold_out, standard_library, text_files
from dew.data.text.walk import matching_files

pytestmark = pytest.mark.alone

LINES = "".join(f"line {i} of the text\n" for i in range(400))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "text"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(LINES)
    return path


def load(path, *, batch=4, tokenize=None, seq_len=32, **fields):
    return TextFiles(path=str(path), seq_len=seq_len, **fields).load(batch=batch, tokenize=tokenize)


def bins(cache):
    (folder,) = [each for each in cache.iterdir() if not each.name.startswith(".")]
    return (folder / "train.bin").read_bytes(), (folder / "val.bin").read_bytes()


def test_one_file_is_split_at_a_line_near_its_end(file, cache):
    load(file, val_fraction=0.1)
    train, val = bins(cache)
    assert (train + val).decode() == LINES and train.endswith(b"\n")
    assert 0.1 <= len(val) / len(LINES) < 0.105


def test_a_folder_holds_out_whole_files(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"{i:02}" * 200)
    corpus = hold_out(text_files(folder, "**/*"), 0.1)
    assert len(corpus.val) == 4 and len(corpus.train) == 36
    assert {span.name for span in corpus.val}.isdisjoint(span.name for span in corpus.train)
    assert [span.name for span in corpus.train] == sorted(span.name for span in corpus.train)


def test_a_file_that_outweighs_the_folder_gives_its_tail(tmp_path, file):
    (tmp_path / "a.txt").write_text("small\n")
    corpus = hold_out(text_files(tmp_path, "*.txt"), 0.1)
    assert {span.name for span in corpus.val} == {"a.txt", "book.txt"}
    assert sum(span.size for span in corpus.val) >= 0.1 * (len(LINES) + 6)
    (train,) = corpus.train
    tail = next(span for span in corpus.val if span.name == "book.txt")
    assert train.stop == tail.start and tail.stop == len(LINES)


def test_a_short_text_still_holds_out_one_window(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text(LINES[:400])
    data = load(path, seq_len=64)
    assert len(list(data.val(DataPartition()))) == 1


def test_nothing_is_held_out_at_fraction_zero(file):
    assert load(file, val_fraction=0).val is None


def test_cuts_fall_between_characters_of_a_line_without_spaces(tmp_path, cache):
    path = tmp_path / "line.txt"
    path.write_text("語" * 3000 + "a")
    load(path, val_fraction=0.1)
    train, val = bins(cache)
    assert train.decode() + val.decode() == "語" * 3000 + "a"


def test_the_first_bytes_are_taken_in_order_of_names(tmp_path):
    for name, text in (("b.txt", "b" * 50), ("a.txt", "a" * 30), ("c.txt", "c" * 50)):
        (tmp_path / name).write_text(text)
    spans = first_bytes(text_files(tmp_path, "*.txt"), 60)
    assert [(span.name, span.size) for span in spans] == [("a.txt", 30), ("b.txt", 30)]


def test_the_standard_library_comes_without_tests_sorted():
    names = [span.name for span in standard_library()]
    assert names == sorted(names) and "argparse.py" in names
    assert not [
        name for name in names if {"test", "tests", "idlelib", "site-packages"} & set(name.split("/"))
    ]


def test_without_a_path_the_first_8_mb_of_the_library_are_read(cache):
    data = TextFiles(seq_len=128).load(batch=8)
    train, val = bins(cache)
    assert 7_990_000 < len(train) + len(val) <= 8_000_000
    assert data.records == (len(train) - 1) // 128
    assert (Path(os.__file__).parent / standard_library()[0].name).read_bytes()[:500] in train + val


def test_hidden_and_empty_files_and_other_names_are_passed_over(tmp_path):
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    for name in (".git/x.txt", ".hidden.txt", "sub/kept.txt", "notes.md"):
        (root / name).write_text("text")
    (root / "empty.txt").touch()
    assert [span.name for span in text_files(root, "**/*.txt")] == ["sub/kept.txt"]


def test_the_same_files_are_tokenized_once(file, monkeypatch):
    load(file)
    monkeypatch.setattr(text_cache, "encode_spans", lambda *_: pytest.fail("tokenized again"))
    load(file, batch=8, seq_len=16)


@pytest.mark.parametrize("change", ["text", "time", "tokenizer", "split"])
def test_a_change_of_what_the_ids_come_from_tokenizes_again(file, cache, change):
    load(file)
    fields = {}
    if change == "text":
        file.write_text(LINES + "more\n")
    elif change == "time":
        os.utime(file, ns=(1, 1))
    elif change == "tokenizer":
        fields["tokenize"] = characters(file.parent)
    else:
        fields["val_fraction"] = 0.2
    load(file, **fields)
    assert len(list(cache.iterdir())) == 2


def characters(folder):
    alphabet = sorted(set(LINES))
    vocabulary = {each: i for i, each in enumerate(["</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    path = folder / "tok" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    tokenizer.save(str(path))
    return HFTokenizer(path)


def test_documents_end_with_the_tokenizers_end_id(tmp_path, cache):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(LINES)
    load(folder, tokenize=characters(tmp_path), val_fraction=0)
    (train,) = [each.read_bytes() for each in cache.glob("*/train.bin")]
    assert train.count(b"\0") == 2 and train[len(LINES)] == train[-1] == 0
    assert len(train) == 2 * len(LINES) + 2


def test_a_damaged_cache_is_built_again(file, cache):
    load(file)
    before = bins(cache)
    (cut,) = cache.glob("*/train.bin")
    cut.write_bytes(b"x")
    load(file)
    assert bins(cache) == before


def test_a_failed_build_leaves_nothing(tmp_path, cache):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine " * 100_000 + b"\xff")
    with pytest.raises(ValueError):
        load(path)
    assert list(cache.iterdir()) == []


def test_drafts_of_dead_processes_are_swept(file, cache):
    for name, age in ((".draft-old", 2 * 24 * 3600), (".draft-new", 60)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    load(file)
    assert {each.name for each in cache.glob(".draft-*")} == {".draft-new"}


def test_the_users_folder_stays_as_it_was(tmp_path, file):
    before = {each: each.stat().st_mtime_ns for each in tmp_path.glob("*.txt")}
    load(file)
    assert {each: each.stat().st_mtime_ns for each in tmp_path.glob("*.txt")} == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["book.txt", "cache"]


def test_the_later_of_two_builders_takes_the_earlier_ones(file, cache, monkeypatch):
    encode = text_cache.encode_spans

    def beaten(writer, split, spans, tokenizer):
        monkeypatch.setattr(text_cache, "encode_spans", encode)
        load(file)
        encode(writer, split, spans, tokenizer)

    monkeypatch.setattr(text_cache, "encode_spans", beaten)
    assert load(file).records == (len(bins(cache)[0]) - 1) // 32
    assert len(list(cache.iterdir())) == 1


def test_position_is_refused_when_the_text_changed(file):
    state = load(file).train(DataPartition()).get_state()
    os.utime(file, ns=(1, 1))
    load(file).train(DataPartition()).set_state(state)
    file.write_text(LINES.upper())
    with pytest.raises(ValueError, match="text was"):
        load(file).train(DataPartition()).set_state(state)


def test_ids_do_not_depend_on_blocks(file, cache, monkeypatch):
    tokenizer = characters(file.parent)
    load(file, tokenize=tokenizer)
    expected = bins(cache)
    os.utime(file, ns=(1, 1))
    for each in cache.glob("*/*"):
        each.unlink()
    monkeypatch.setattr("dew.data.text.reading.BLOCK", 7)
    load(file, tokenize=tokenizer)
    assert [path.read_bytes() for path in sorted(cache.glob("*/*.bin"))] == list(expected)


# What a user can hand over by mistake: the message names the file and the way out.


def refused(path, message, error=ValueError, **fields):
    with pytest.raises(error, match=message) as caught:
        load(path, **fields)
    assert str(path) in str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    refused(tmp_path / "empty.txt", "is empty; name text to train on")


def test_a_folder_of_empty_files_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    refused(tmp_path, "holds only empty files", glob="*.txt")


def test_a_binary_file_is_refused_with_the_offset(tmp_path):
    (tmp_path / "image.png").write_bytes(b"PNG" * 600_000 + b"\0")
    refused(
        tmp_path / "image.png", r"binary file \(a NUL byte at 1800000\); name text files, as by data\.glob"
    )


@pytest.mark.parametrize("before", [0, (1 << 20) - 1, (1 << 20) + 5])
def test_invalid_utf8_is_refused_with_the_offset(tmp_path, before):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"x" * before + "größe".encode("latin-1") + b" words" * 100)
    refused(path, rf"not valid UTF-8 at byte {before + 2} .*iconv")


def test_a_character_broken_over_a_block_border_has_its_own_offset(tmp_path):
    path = tmp_path / "broken.txt"
    path.write_bytes(b"x" * ((1 << 20) - 1) + b"\xe6A" + b" words" * 100)
    refused(path, f"not valid UTF-8 at byte {(1 << 20) - 1} ", val_fraction=0)


def test_a_character_cut_off_at_the_end_is_refused(tmp_path):
    (tmp_path / "cut.txt").write_bytes(b"words " * 100 + b"\xe6\x97")
    refused(tmp_path / "cut.txt", "not valid UTF-8 at byte 600", val_fraction=0)


def test_characters_over_block_borders_are_valid(tmp_path, cache, monkeypatch):
    monkeypatch.setattr("dew.data.text.reading.BLOCK", 4)
    (tmp_path / "cjk.txt").write_text("日本語" * 100)
    load(tmp_path / "cjk.txt", val_fraction=0)
    (train,) = cache.glob("*/train.bin")
    assert train.read_text() == "日本語" * 100


@pytest.mark.parametrize("characters", [20, 60])
def test_too_short_a_text_is_refused_with_the_numbers(tmp_path, characters):
    (tmp_path / "short.txt").write_text("x" * characters)
    message = r"too short: its \w+ part has \d+ ids, and one window of .* takes 33; use a shorter"
    refused(tmp_path / "short.txt", message)


def test_a_missing_path_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "is not there; name a text file or a folder", FileNotFoundError)


def test_a_glob_without_a_match_is_refused(tmp_path, file):
    refused(tmp_path, r"\.md' matches no file below .*takes every file", FileNotFoundError, glob="**/*.md")


def test_an_empty_folder_is_called_empty(tmp_path):
    refused(tmp_path, "matches no file below .*; it holds none", FileNotFoundError)


def test_a_file_without_permission_is_refused(file, monkeypatch):
    opened = Path.open

    def denied(self, *args, **kwargs):
        if self == file:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)
    refused(file, r"may not be read by this user; change its permissions", PermissionError)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_permission_is_refused(tmp_path, file):
    (tmp_path / "closed").mkdir(mode=0)
    refused(tmp_path / "closed", "may not be read by this user", PermissionError)


def test_a_folder_of_ids_names_the_dataset_for_it(file, cache):
    load(file)
    (ids,) = cache.iterdir()
    refused(ids, "holds ids that were tokenized before; read it with data:token-windows")


def test_no_tokenizer_is_a_type_error(file):
    with pytest.raises(TypeError, match="is no tokenizer; load_tokenizer"):
        load(file, tokenize="byte")


@pytest.mark.parametrize(
    ("field", "value"), [("seq_len", 0), ("val_fraction", 1.0), ("val_windows", 0), ("max_bytes", 0)]
)
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f"data.{field}={value}"):
        TextFiles(**{field: value})


def test_byte_is_the_default_tokenizer(file):
    named, default = load(file, tokenize=ByteTokenizer()), load(file)
    assert named.train(DataPartition()).get_state() == default.train(DataPartition()).get_state()


def test_a_glob_beside_a_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 1000)
    with pytest.raises(ValueError, match=r"data\.glob='\*\.md' chooses files of a folder"):
        TextFiles(path=str(tmp_path / "a.txt"), glob="*.md", seq_len=8).load(batch=2)


def test_links_to_folders_are_not_followed_and_a_linked_file_is_read_once(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "kept.txt").write_text("x" * 400)
    (tmp_path / "sub" / "again.txt").symlink_to("kept.txt")
    (tmp_path / "sub" / "up").symlink_to("..")
    (tmp_path / "loop").symlink_to(".")
    assert [span.name for span in text_files(tmp_path, "**/*")] == ["sub/kept.txt"]


@pytest.mark.parametrize(
    "pattern",
    [
        "**/*",
        "*",
        "**",
        "**/*.md",
        "*/*.md",
        "a/**/c.md",
        "**/.git/*",
        ".*",
        "[ab]/*",
        "**.md",
        "a/**/*.md",
        "./*",
    ],
)
def test_a_glob_chooses_what_pythons_glob_does(tmp_path, pattern):
    for name in ("a/b/c.md", "a/c.md", "b/x.txt", "c.md", ".git/x", ".h.md", "a/.git/y", "a/b/.z/q.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    chosen = {tmp_path / each for each in glob.glob(pattern, root_dir=tmp_path, recursive=True)}
    assert set(matching_files(tmp_path, pattern)) == {each for each in chosen if each.is_file()}
