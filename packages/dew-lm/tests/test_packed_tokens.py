"""Documents packed into rows: the plan, the rows, and what they train."""

import json
import pickle
from itertools import pairwise

import numpy as np
import pytest

from dew.data import DataPartition, PackedTokens
from dew.data.tokens import CorpusWriter, PackedRows, PackingPlan, TokenBytes
from dew.data.tokens.packing import cut_documents, document_bounds, first_fit
from dew.data.tokens.source import ForeignIds
from dew.failure import StatedFailure

END = 0


def write(folder, train, val=None, *, document_end: int | None = END, vocab_size=1000):
    folder.mkdir(exist_ok=True)
    names = {"tokenizer": "t", "tokenizer_fingerprint": "f", "vocab_size": vocab_size}
    with CorpusWriter(folder, **names, document_end=document_end) as writer:
        for split, documents in (("train", train), ("val", val or train)):
            writer.append(split, [token for document in documents for token in document])
        writer.finish()
    return folder


def documents(*lengths, first=1):
    """Documents of those lengths, each ended by `END`; no id but `END` twice."""
    ids = iter(range(first, 1000))
    return [[*(next(ids) for _ in range(length - 1)), END] for length in lengths]


def source(folder, split="train"):
    return TokenBytes(folder / f"{split}.bin", "uint16")


def test_documents_end_with_their_end_id_and_the_last_with_the_corpus(tmp_path):
    write(tmp_path, [[5, 6, END], [END], [7, 8, 9]])
    assert document_bounds(source(tmp_path), END).tolist() == [0, 3, 4, 7]


def test_ends_are_found_across_the_chunks_that_are_searched(tmp_path, monkeypatch):
    monkeypatch.setattr("dew.data.tokens.packing.CHUNK", 4)
    write(tmp_path, documents(3, 1, 4, 2))
    assert document_bounds(source(tmp_path), END).tolist() == [0, 3, 4, 8, 10]


@pytest.mark.parametrize(
    ("length", "pieces"),
    [
        (1, []),
        (2, [(0, 2)]),
        (5, [(0, 5)]),
        (6, [(0, 5), (4, 2)]),
        (9, [(0, 5), (4, 5)]),
        (10, [(0, 5), (4, 5), (8, 2)]),
    ],
)
def test_pieces_of_a_document_predict_every_id_but_the_first_once(length, pieces):
    starts, lengths = cut_documents(np.asarray([0, length]), seq_len=4)
    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == pieces


def test_first_fit_takes_the_first_row_with_room():
    lengths = np.asarray([6, 7, 4, 3, 2, 10, 2])
    assert first_fit(lengths, 10).tolist() == [0, 1, 0, 1, 2, 3, 2]


def test_first_fit_is_the_search_through_all_rows():
    draw = np.random.default_rng(0)
    for _ in range(30):
        capacity = int(draw.integers(2, 40))
        lengths = draw.integers(2, capacity + 1, size=80)
        room: list[int] = []
        for length, row in zip(lengths.tolist(), first_fit(lengths, capacity).tolist(), strict=True):
            fits = [index for index, left in enumerate(room) if left >= length]
            assert row == (fits[0] if fits else len(room))
            room = [*room, capacity] if not fits else room
            room[row] -= length


def test_a_row_counts_documents_from_one_and_positions_from_zero_and_pads_with_zeros(tmp_path):
    write(tmp_path, documents(3, 4, 3))
    rows = PackedRows(source(tmp_path), PackingPlan.of(source(tmp_path), end=END, seq_len=7), 7)
    assert {name: field.tolist() for name, field in rows[0].items()} == {
        "text": [1, 2, 0, 3, 4, 5, 0, 0],
        "text_segment_ids": [1, 1, 1, 2, 2, 2, 2, 0],
        "text_positions": [0, 1, 2, 0, 1, 2, 3, 0],
    }
    assert rows[1]["text_segment_ids"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0] and len(rows) == 2


def predictions(rows):
    """Every (token before, target) of the rows that counts, by the segments."""
    for row in rows:
        text, segment = row["text"], row["text_segment_ids"]
        counted = (segment[1:] == segment[:-1]) & (segment[1:] != 0)
        yield from zip(text[:-1][counted].tolist(), text[1:][counted].tolist(), strict=True)


def test_an_epoch_predicts_every_id_of_every_document_but_its_first_once(tmp_path):
    lengths = np.random.default_rng(1).integers(1, 30, size=40).tolist()
    held = documents(*lengths)
    write(tmp_path, held)
    data = PackedTokens(path=str(tmp_path), seq_len=11).load(batch=1)
    with_reader = data.train(DataPartition())
    rows = [{name: leaf[0] for name, leaf in next(with_reader).items()} for _ in range(data.records)]
    expected = [pair for document in held for pair in pairwise(document)]
    assert sorted(predictions(rows)) == sorted(expected)


def test_whole_batches_of_an_epoch_are_counted_in_rows(tmp_path):
    """Uneven documents; every share sees as many batches."""
    write(tmp_path, documents(7, 3, 9, 2, 5, 8, 4))
    data = PackedTokens(path=str(tmp_path), seq_len=9).load(batch=2)
    plan = PackingPlan.of(source(tmp_path), end=END, seq_len=9)
    assert data.records == len(plan) == 5 and data.steps_per_epoch == 2
    shares = [data.train(DataPartition(index, 2)) for index in range(2)]
    assert [len(next(share)["text"]) for share in shares for _ in range(6)] == [1] * 12


def firsts(folder, cap):
    """The first id of every validation row."""
    data = PackedTokens(path=str(folder), seq_len=8, val_rows=cap).load(batch=4)
    return [row[0] for batch in data.val(DataPartition()) for row in batch["text"].tolist()]


def test_validation_rows_come_in_the_order_of_the_plan_and_a_cap_spreads_them(tmp_path):
    write(tmp_path, documents(9), documents(9, 9, 9, 9))
    assert firsts(tmp_path, None) == [1, 9, 17, 25]
    assert firsts(tmp_path, 2) == [1, 17]


def position(spec):
    return spec.load(batch=2).train(DataPartition()).get_state()


def test_a_position_under_another_plan_is_refused(tmp_path):
    write(tmp_path, documents(7, 3, 9, 2, 5))
    spec = PackedTokens(path=str(tmp_path), seq_len=9)
    for change, named in ({"document_end": 8}, "packing"), ({"seed": 1}, "seed"), ({"seq_len": 8}, "seq_len"):
        other = PackedTokens(**{"path": str(tmp_path), "seq_len": 9, **change})
        with pytest.raises(ValueError, match=f"{named} was"):
            other.load(batch=2).train(DataPartition()).set_state(position(spec))


def test_the_field_wins_over_what_the_folder_says(tmp_path):
    write(tmp_path, [[1, 2, 9, 3, 4, 5, 9]])
    spec = PackedTokens(path=str(tmp_path), seq_len=6, document_end=9)
    assert next(spec.load(batch=1).train(DataPartition()))["text_segment_ids"].tolist() == [
        [1, 1, 1, 2, 2, 2, 2]
    ]


def test_a_corpus_that_says_nothing_about_documents_is_refused(tmp_path):
    write(tmp_path, documents(5), document_end=None)
    with pytest.raises(ValueError, match=r"nothing says where the documents .* set data\.document_end"):
        PackedTokens(path=str(tmp_path)).load(batch=1)


def test_an_end_that_stands_nowhere_is_refused(tmp_path):
    write(tmp_path, documents(5, 3))
    with pytest.raises(ValueError, match=r"document_end=900 stands nowhere in .*train\.bin.*token-windows"):
        PackedTokens(path=str(tmp_path), document_end=900).load(batch=1)


def test_a_corpus_of_single_ids_is_refused(tmp_path):
    write(tmp_path, [[END], [END]])
    with pytest.raises(ValueError, match=r"train\.bin holds no document of two ids"):
        PackedTokens(path=str(tmp_path)).load(batch=1)


def test_ids_outside_the_tokenizers_vocabulary_are_named(tmp_path):
    write(tmp_path, documents(5, first=300))
    rows = PackedRows(source(tmp_path), PackingPlan.of(source(tmp_path), end=END, seq_len=7), 7, 256)
    with pytest.raises(ForeignIds, match="holds the id 303 in packed row 0") as caught:
        rows[0]
    assert isinstance(caught.value, StatedFailure) and isinstance(caught.value, ValueError)


def test_the_writer_records_the_end_and_refuses_one_outside_the_vocabulary(tmp_path):
    write(tmp_path / "a", documents(5), document_end=3)
    assert json.loads((tmp_path / "a" / "meta.json").read_text())["document_end"] == 3
    with pytest.raises(ValueError, match="document_end=1000 must be an id from 0 to 999"):
        CorpusWriter(tmp_path, tokenizer="t", tokenizer_fingerprint="f", vocab_size=1000, document_end=1000)


def test_a_pickled_reader_gives_the_same_rows(tmp_path):
    write(tmp_path, documents(5, 4, 8))
    rows = PackedRows(source(tmp_path), PackingPlan.of(source(tmp_path), end=END, seq_len=8), 8)
    again = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(again[1]["text"], rows[1]["text"])


@pytest.mark.parametrize("fields", [{"seq_len": 0}, {"val_rows": 0}, {"document_end": -1}])
def test_numbers_out_of_range_are_refused(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=rf"data\.{name}="):
        PackedTokens(**fields)
