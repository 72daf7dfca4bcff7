"""One corpus as a .bin file, as ArrayRecord shards and as Parquet files: the same windows, the same plan."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dew.data import DataPartition, PackedTokens, TokenBytes, TokenWindows
from dew.data.chat.reading import read_records
from dew.data.tokens import CorpusWriter, PackingPlan, TokenColumn, TokenRecords

END = 0
LENGTHS = [7, 1, 12, 3, 30, 5, 2, 9, 16, 11]
STORES = ["bin", "array_record", "parquet"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))


def documents(first=1):
    ids = iter(range(first, 1000))
    return [[*(next(ids) for _ in range(length - 1)), END] for length in LENGTHS]


def write_bin(folder, split, held):
    np.asarray([token for document in held for token in document], "<u2").tofile(folder / f"{split}.bin")


def write_array_record(folder, split, held):
    for shard, part in enumerate((held[:4], held[4:])):
        path = folder / f"{split}-0000{shard}-of-00002.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for document in part:
            writer.write(np.asarray(document, "<u2").tobytes())
        writer.close()


def write_parquet(folder, split, held):
    for shard, part in enumerate((held[:7], held[7:])):
        table = pa.table({"name": ["d"] * len(part), "tokens": pa.array(part, pa.list_(pa.int64()))})
        pq.write_table(table, folder / f"{split}-0000{shard}-of-00002.parquet", row_group_size=2)


def corpus(folder, store, meta=True):
    folder.mkdir(parents=True)
    for split, held in (("train", documents()), ("val", documents(first=500))):
        globals()[f"write_{store}"](folder, split, held)
    if meta:
        draft = folder / "draft"
        draft.mkdir()
        names = {"tokenizer": "t", "tokenizer_fingerprint": "f", "vocab_size": 1000}
        with CorpusWriter(draft, **names, document_end=END) as writer:
            for split, held in (("train", documents()), ("val", documents(first=500))):
                writer.append(split, [token for document in held for token in document])
            writer.finish()
        (draft / "meta.json").rename(folder / "meta.json")
    return folder


def source(folder, store):
    if store == "bin":
        return TokenBytes(folder / "train.bin", "uint16")
    paths = sorted(folder.glob("train*"))
    return TokenRecords(paths, "uint16") if store == "array_record" else TokenColumn(paths)


@pytest.mark.parametrize("store", STORES)
def test_any_range_of_ids_is_that_of_the_documents_one_after_another(tmp_path, store):
    opened = source(corpus(tmp_path / "c", store), store)
    flat = [token for document in documents() for token in document]
    assert len(opened) == len(flat)
    for start, stop in [(0, 0), (0, 1), (6, 9), (7, 8), (0, len(flat)), (40, 71), (len(flat) - 1, len(flat))]:
        assert opened.read(start, stop).tolist() == flat[start:stop]


@pytest.mark.parametrize("store", STORES[1:])
def test_a_copy_for_another_process_carries_no_open_file_and_reads_alike(tmp_path, store):
    opened = source(corpus(tmp_path / "c", store), store)
    first = opened.read(3, 50)
    again = pickle.loads(pickle.dumps(opened))
    assert again.read(3, 50).tolist() == first.tolist()


def rows(spec, split):
    data = spec.load(batch=2)
    reader = getattr(data, split)(DataPartition())
    count = 2 * data.steps_per_epoch if split == "train" else 2
    return [{name: leaf.tolist() for name, leaf in next(reader).items()} for _ in range(count)]


@pytest.mark.parametrize("kind", [TokenWindows, PackedTokens])
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_three_stores_give_the_same_rows(tmp_path, kind, split):
    found = [rows(kind(path=str(corpus(tmp_path / store, store)), seq_len=10), split) for store in STORES]
    assert found[0] == found[1] == found[2]


def test_the_three_stores_make_the_same_plan(tmp_path):
    plans = [
        PackingPlan.of(source(corpus(tmp_path / store, store), store), end=END, seq_len=10)
        for store in STORES
    ]
    assert len({plan.digest() for plan in plans}) == 1


def test_without_an_end_each_record_is_a_document(tmp_path):
    folder = corpus(tmp_path / "c", "parquet", meta=False)
    ended = PackingPlan.of(source(folder, "parquet"), end=END, seq_len=10)
    assert PackingPlan.of(source(folder, "parquet"), end=None, seq_len=10).digest() == ended.digest()
    spec = PackedTokens(path=str(folder), seq_len=10)
    assert rows(spec, "val") == rows(PackedTokens(path=str(folder), seq_len=10, document_end=END), "val")


def test_what_is_cut_and_left_out_is_counted(tmp_path):
    counts = PackingPlan.of(source(corpus(tmp_path / "c", "bin"), "bin"), end=END, seq_len=10).counts
    # Longer than 11 ids: 12, 30 and 16, in 2, 3 and 2 pieces; 96 ids, 4 of them twice, one left out.
    assert (counts.documents, counts.single, counts.cut, counts.pieces) == (10, 1, 3, 7)
    assert (counts.ids, counts.filled) == (96, 96 - 1 + 4)
    assert "3 longer than a row, cut into 7 pieces; 1 of a single id left out" in str(counts)


def test_a_position_goes_on_in_every_store(tmp_path):
    for store in STORES:
        spec = PackedTokens(path=str(corpus(tmp_path / store, store)), seq_len=10, seed=3)
        whole = spec.load(batch=2).train(DataPartition())
        expected = [next(whole)["text"].tolist() for _ in range(9)]
        cut = spec.load(batch=2).train(DataPartition())
        for _ in range(5):
            next(cut)
        again = spec.load(batch=2).train(DataPartition())
        again.set_state(cut.get_state())
        assert [next(again)["text"].tolist() for _ in range(4)] == expected[5:]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.bin", "train.parquet"], r"holds train in several stores"),
        (["train-00000-of-00002.parquet"], r"are not one whole set"),
        (["train-a.bin"], r"a \.bin split is one file, train\.bin"),
    ],
)
def test_files_that_are_no_whole_split_are_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        TokenWindows(path=str(tmp_path)).load(batch=1)


def test_a_count_other_than_the_metas_is_refused(tmp_path):
    folder = corpus(tmp_path / "c", "parquet")
    write_parquet(folder, "val", documents()[:9])
    with pytest.raises(ValueError, match=r"85 ids of val where meta\.json says 96"):
        TokenWindows(path=str(folder), seq_len=5).load(batch=1)


@pytest.mark.parametrize("store", STORES[:2])
def test_a_width_other_than_the_metas_is_refused(tmp_path, store):
    folder = corpus(tmp_path / "c", store)
    paths = sorted(folder.glob("train*"))
    with pytest.raises(ValueError, match=r"dtype=uint8 is not what .*meta\.json says: uint16; leave it out"):
        TokenBytes(paths[0], "uint8") if store == "bin" else TokenRecords(paths, "uint8")


def test_a_width_that_nobody_says_is_the_metas(tmp_path):
    folder = corpus(tmp_path / "c", "bin")
    assert TokenBytes(folder / "train.bin").dtype == "uint16"
    (folder / "meta.json").unlink()
    with pytest.raises(ValueError, match=r"has no meta\.json beside it; say dtype: uint8, uint16, uint32"):
        TokenBytes(folder / "train.bin")
    with pytest.raises(ValueError, match="dtype='int16' must be one of uint8, uint16, uint32"):
        TokenBytes(folder / "train.bin", "int16")


def test_columns_that_leave_a_choice_are_named(tmp_path):
    table = pa.table({"a": [[1, 2]], "b": [[3, 4]], "c": ["x"]})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(
        ValueError, match=r"of which a, b holds lists of integers, and data\.column is not set"
    ):
        TokenWindows(path=str(tmp_path), seq_len=1).load(batch=1)
    with pytest.raises(ValueError, match=r"data\.column='c' is none of them"):
        TokenWindows(path=str(tmp_path), seq_len=1, column="c").load(batch=1)
    data = TokenWindows(path=str(tmp_path), seq_len=1, column="b").load(batch=1)
    assert next(data.train(DataPartition()))["text"].tolist() == [[3, 4]]


def test_ids_wider_than_said_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [[1, 70_000]]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"holds ids 1\.\.70000, which uint16 does not hold"):
        TokenWindows(path=str(tmp_path), seq_len=1, dtype="uint16").load(batch=1)


def test_a_column_is_copied_once_and_again_when_its_file_changes(tmp_path, monkeypatch):
    folder = corpus(tmp_path / "c", "parquet")
    first = source(folder, "parquet")
    monkeypatch.setattr("dew.data.tokens.records._copy", lambda *_: pytest.fail("copied again"))
    assert source(folder, "parquet").read(5, 20).tolist() == first.read(5, 20).tolist()
    monkeypatch.undo()
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))
    write_parquet(folder, "train", documents(first=300))
    os.utime(folder / "train-00000-of-00002.parquet", ns=(1, 1))
    assert source(folder, "parquet").read(0, 2).tolist() == [300, 301]


@pytest.mark.parametrize("suffix", ["parquet", "array_record"])
def test_damaged_files_are_named(tmp_path, suffix):
    (tmp_path / f"train.{suffix}").write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(ValueError, match=rf"train\.{suffix} is no (Parquet|ArrayRecord) file"):
        TokenWindows(path=str(tmp_path), dtype="uint16").load(batch=1)


MISSING = """
import sys
sys.modules["pyarrow"] = None
from dew.data import TokenWindows
try:
    TokenWindows(path=sys.argv[1]).load(batch=1)
except ImportError as error:
    print(error)
"""


def test_a_missing_library_is_named_with_what_installs_it(tmp_path):
    pq.write_table(pa.table({"a": [[1, 2]]}), tmp_path / "train.parquet")
    done = subprocess.run([sys.executable, "-c", MISSING, str(tmp_path)], capture_output=True, text=True)
    assert "Parquet files need pyarrow: pip install 'dew-lm[data]'" in done.stdout, done.stderr


@pytest.mark.parametrize("open_none", [lambda: TokenRecords([], "uint16"), lambda: TokenColumn([])])
def test_no_file_is_refused_by_the_name_of_the_argument(open_none):
    with pytest.raises(ValueError, match=r"paths=\[\] names no file"):
        open_none()


@pytest.mark.parametrize("damage", ["empty", "other", "cut", "footer"])
def test_a_damaged_parquet_file_is_refused_by_its_path(tmp_path, damage):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"ids": [[1, 2], [3]], "text": ["a", "b"]}), path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    footer = whole[: -8 - size] + b"\xff" * size + whole[-8:]
    path.write_bytes({"empty": b"", "other": b"text" * 9, "cut": whole[:-9], "footer": footer}[damage])
    for read in (lambda: TokenColumn([path]), lambda: list(read_records(path))):
        with pytest.raises(ValueError, match=r"train\.parquet is no Parquet file, or a damaged one"):
            read()
