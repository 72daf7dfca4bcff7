"""Corpora of ids: the folder's layout, the windows and what `TokenWindows` refuses."""

import json
import pickle

import numpy as np
import pytest

from dew.data import DataPartition, TokenBytes, TokenWindows
from dew.data.text import ByteTokenizer
from dew.data.tokens import CorpusWriter, Windows
from dew.data.tokens.store import SAMPLE, SAMPLES, CorpusMeta, id_dtype, sampled_digest


def write(folder, *, train=range(100), val=range(100, 140), vocab_size=1000):
    folder.mkdir(exist_ok=True)
    with CorpusWriter(folder, tokenizer="t", tokenizer_fingerprint="f", vocab_size=vocab_size) as writer:
        writer.append("train", list(train))
        writer.append("val", list(val))
        writer.finish()
    return folder


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus")


def rows(batches):
    return [row for batch in batches for row in batch["text"].tolist()]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_ids_take_the_narrowest_width(vocab_size, dtype):
    assert id_dtype(vocab_size) == dtype


def test_bin_files_are_little_endian_ids_alone(corpus):
    assert (corpus / "val.bin").read_bytes() == np.arange(100, 140, dtype="<u2").tobytes()
    assert json.loads((corpus / "meta.json").read_text())["ids"] == {"train": 100, "val": 40}


def test_neighbouring_windows_share_one_id(corpus):
    windows = Windows(TokenBytes(corpus / "train.bin", "uint16"), seq_len=33)
    assert [windows[i]["text"].tolist() for i in range(len(windows))] == [
        list(range(0, 34)),
        list(range(33, 67)),
        list(range(66, 100)),
    ]


@pytest.mark.parametrize(("ids", "windows"), [(10, 0), (11, 1), (20, 1), (21, 2)])
def test_a_tail_without_a_whole_window_is_left_out(tmp_path, ids, windows):
    write(tmp_path, train=range(ids))
    assert len(Windows(TokenBytes(tmp_path / "train.bin", "uint16"), seq_len=10)) == windows


def test_every_training_window_comes_once_an_epoch(corpus):
    data = TokenWindows(path=str(corpus), seq_len=11, seed=4).load(batch=3)
    reader = data.train(DataPartition())
    epoch = rows(next(reader) for _ in range(3))
    assert data.records == 9
    assert sorted(epoch) == [list(range(i, i + 12)) for i in range(0, 99, 11)] and epoch != sorted(epoch)


def test_validation_windows_come_in_order(corpus):
    data = TokenWindows(path=str(corpus), seq_len=13).load(batch=2)
    starts = [row[0] for row in rows(data.val(DataPartition()))]
    assert starts == [100, 113, 126]


def test_a_cap_spreads_validation_over_the_split(corpus):
    data = TokenWindows(path=str(corpus), seq_len=3, val_windows=4).load(batch=4)
    assert [row[0] for row in rows(data.val(DataPartition()))] == [100, 109, 118, 127]


def test_batches_are_int32_rows_of_one_id_more(corpus):
    batch = next(TokenWindows(path=str(corpus), seq_len=8).load(batch=2).train(DataPartition()))
    assert batch["text"].dtype == np.int32 and batch["text"].shape == (2, 9)


@pytest.mark.parametrize("change", [{"seq_len": 9}, {"seed": 1}])
def test_position_under_other_windows_is_refused(corpus, change):
    state = TokenWindows(path=str(corpus), seq_len=8).load(batch=2).train(DataPartition()).get_state()
    other = TokenWindows(**{"path": str(corpus), "seq_len": 8, **change}).load(batch=2)
    with pytest.raises(ValueError, match=next(iter(change))):
        other.train(DataPartition()).set_state(state)


def test_position_in_other_ids_is_refused(corpus, tmp_path):
    state = TokenWindows(path=str(corpus), seq_len=8).load(batch=2).train(DataPartition()).get_state()
    other = write(tmp_path / "other", train=range(1, 101))
    with pytest.raises(ValueError, match="text was"):
        TokenWindows(path=str(other), seq_len=8).load(batch=2).train(DataPartition()).set_state(state)


def test_a_pickled_source_carries_no_data(corpus):
    source = TokenBytes(corpus / "train.bin", "uint16")
    source.read(0, 5)
    assert b"memmap" not in pickle.dumps(source)
    assert pickle.loads(pickle.dumps(source)).read(2, 5).tolist() == [2, 3, 4]


def test_folder_without_meta_needs_a_width(tmp_path):
    np.arange(50, dtype="<u4").tofile(tmp_path / "train.bin")
    with pytest.raises(ValueError, match=r"no meta\.json; say data\.dtype"):
        TokenWindows(path=str(tmp_path), seq_len=8).load(batch=2)
    data = TokenWindows(path=str(tmp_path), seq_len=8, dtype="uint32").load(batch=2)
    assert data.records == 6 and data.val is None


def test_a_width_against_the_meta_is_refused(corpus):
    with pytest.raises(ValueError, match=r"dtype=uint32 is not what .*meta\.json says: uint16"):
        TokenWindows(path=str(corpus), seq_len=8, dtype="uint32").load(batch=2)


def test_another_tokenizers_ids_are_refused(corpus):
    with pytest.raises(ValueError, match=r"the tokenizer 't' \(vocabulary 1000\), not with 'byte'"):
        TokenWindows(path=str(corpus), seq_len=8).load(batch=2, tokenize=ByteTokenizer())


def test_a_reader_of_captions_is_refused(corpus):
    with pytest.raises(TypeError, match="need no reader of text"):
        TokenWindows(path=str(corpus), seq_len=8).load(batch=2, tokenize=lambda captions: {})


def test_a_split_without_a_window_names_its_file(corpus):
    with pytest.raises(ValueError, match=r"val\.bin is too short for one window of seq_len=50"):
        TokenWindows(path=str(corpus), seq_len=50).load(batch=2)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("notes.txt", FileNotFoundError, r"holds no train\.bin.*for a folder of text use data:text"),
        ("val.bin", FileNotFoundError, r"holds no train\.bin"),
    ],
)
def test_folders_without_bin_files_say_what_they_hold(tmp_path, name, error, message):
    (tmp_path / name).write_text("x")
    with pytest.raises(error, match=message):
        TokenWindows(path=str(tmp_path)).load(batch=2)


def test_a_file_or_nothing_at_the_path_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(ValueError, match="is a file; for text use data:text"):
        TokenWindows(path=str(tmp_path / "text.txt")).load(batch=2)
    with pytest.raises(FileNotFoundError, match="is not there"):
        TokenWindows(path=str(tmp_path / "nowhere")).load(batch=2)
    with pytest.raises(ValueError, match=r"data\.path is not set"):
        TokenWindows().load(batch=2)


def test_a_cut_off_split_is_noticed(corpus):
    (corpus / "train.bin").write_bytes(b"\0" * 150)
    with pytest.raises(ValueError, match=r"train\.bin holds 150 bytes where meta\.json says 100 ids of 2"):
        CorpusMeta.read(corpus)


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"dtype": "float32", "tokenizer": ""}'])
def test_a_meta_of_another_form_is_refused(corpus, content):
    (corpus / "meta.json").write_text(content)
    with pytest.raises(ValueError, match=r"meta\.json"):
        CorpusMeta.read(corpus)


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"gave ids 0\.\.99 outside its vocabulary of 50"):
        write(tmp_path, vocab_size=50)


def test_the_digest_tells_splits_and_ids_apart(tmp_path):
    digests = {
        CorpusMeta.read(write(tmp_path / str(i), train=train, val=val)).digest
        for i, (train, val) in enumerate([([1, 2], [3]), ([1], [2, 3]), ([1, 2], [4])])
    }
    assert len(digests) == 3


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("changed", [0, 50, 99])
def test_rewritten_ids_of_the_same_size_are_other_data(corpus, described, changed):
    if not described:
        (corpus / "meta.json").unlink()
    spec = TokenWindows(path=str(corpus), seq_len=9, dtype="uint16")
    position = spec.load(batch=2).train(DataPartition()).get_state()
    spec.load(batch=2).train(DataPartition()).set_state(position)
    ids = np.fromfile(corpus / "train.bin", "<u2")
    ids[changed] += 1
    ids.tofile(corpus / "train.bin")
    with pytest.raises(ValueError, match="belongs to other data: text was"):
        spec.load(batch=2).train(DataPartition()).set_state(position)


def test_a_large_file_is_told_by_pieces_spread_over_it(tmp_path):
    file = tmp_path / "train.bin"
    content = bytearray(SAMPLES * SAMPLE * 2)
    middle = len(content) // 2
    digests = set()
    for place in (slice(0, 1), slice(middle, middle + 2 * SAMPLE), slice(len(content) - 1, len(content))):
        content[place] = bytes([1]) * (place.stop - place.start)
        file.write_bytes(content)
        digests.add(sampled_digest(file))
    assert len(digests) == 3


def test_ids_the_tokenizer_lacks_are_named_when_they_are_read(corpus):
    (corpus / "meta.json").unlink()
    np.asarray([1, 2, 300, 4, 5], "<u2").tofile(corpus / "val.bin")
    data = TokenWindows(path=str(corpus), seq_len=4, dtype="uint16").load(batch=1, tokenize=ByteTokenizer())
    assert next(data.train(DataPartition()))["text"].max() < 256
    with pytest.raises(ValueError, match=r"val\.bin.*the id 300 in window 0.*ids 0 to 255"):
        next(data.val(DataPartition()))
