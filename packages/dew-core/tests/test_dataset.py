"""Datasets over Grain: one global order, its shares, and positions that other data refuses."""

from itertools import chain

import grain
import numpy as np
import pytest

from dew.data import DataPartition, Dataset, Loading
from dew.data.position import decode_position, encode_position

INLINE = Loading(workers=0, threads=0)
THREADED = Loading(workers=0, threads=4, read_buffer=16)


def counted(records=10, batch=4, *, loading=INLINE, **kwargs):
    return Dataset.from_grain(grain.MapDataset.range(records), batch=batch, loading=loading, **kwargs)


def take(iterator, count):
    return [np.asarray(next(iterator)).tolist() for _ in range(count)]


def test_batches_run_on_over_the_end_of_an_epoch():
    assert take(counted().train(DataPartition()), 4) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
        [2, 3, 4, 5],
    ]


def test_shuffled_epochs_each_hold_every_record_once_and_differ():
    data = Dataset.from_grain(grain.MapDataset.range(12).seed(3).shuffle(), batch=4, loading=INLINE)
    order = np.concatenate(take(data.train(DataPartition()), 6))
    first, second = order[:12], order[12:]
    assert sorted(first) == sorted(second) == list(range(12))
    assert list(first) != list(second)


@pytest.mark.parametrize("count", [2, 4])
def test_shares_together_are_the_global_batch(count):
    data = counted(records=11, batch=8)
    shares = [take(data.train(DataPartition(index, count)), 3) for index in range(count)]
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == take(
        data.train(DataPartition()), 3
    )


def test_position_of_one_share_continues_any_other_layout():
    data = counted(records=11, batch=8)
    saver = data.train(DataPartition(1, 2))
    take(saver, 2)
    whole, restored = data.train(DataPartition()), data.train(DataPartition())
    take(whole, 2)
    restored.set_state(saver.get_state())
    assert take(restored, 3) == take(whole, 3)


def test_threads_keep_the_order():
    inline, threaded = counted(loading=INLINE), counted(loading=THREADED)
    reader = threaded.train(DataPartition())
    assert take(reader, 9) == take(inline.train(DataPartition()), 9)
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_keep_the_order_and_the_position(workers):
    data, inline = counted(loading=Loading(workers=workers, threads=2)), counted()
    expected = take(inline.train(DataPartition()), 9)
    reader = data.train(DataPartition())
    assert take(reader, 4) == expected[:4]
    restored = data.train(DataPartition())
    restored.set_state(reader.get_state())
    assert take(restored, 5) == expected[4:]
    reader.close()
    restored.close()


def test_restored_position_drops_what_was_read_ahead():
    data = counted(loading=THREADED)
    reader = data.train(DataPartition())
    start = reader.get_state()
    first = take(reader, 3)
    reader.set_state(start)
    assert take(reader, 3) == first
    reader.close()


def test_position_of_other_data_is_refused_with_both_values():
    state = counted(batch=4, fingerprint={"tokenizer": "a"}).train(DataPartition()).get_state()
    other = counted(batch=2, fingerprint={"tokenizer": "b"}).train(DataPartition())
    with pytest.raises(ValueError, match=r"batch was 4, is 2; tokenizer was 'a', is 'b'"):
        other.set_state(state)


def test_the_order_of_a_fingerprints_entries_says_nothing():
    position = encode_position({"files": {"b": 1, "a": {"z": 1, "y": 2}}}, {"position": 3})
    same = {"files": {"a": {"y": 2, "z": 1}, "b": 1}}
    assert decode_position(position, same)["position"] == 3


def test_fields_that_only_one_side_has_are_named():
    state = counted(fingerprint={"filter": 1}).train(DataPartition()).get_state()
    with pytest.raises(ValueError, match="filter was 1, is unset"):
        counted().train(DataPartition()).set_state(state)


def test_bytes_that_are_no_position_are_refused():
    with pytest.raises(ValueError, match="no saved data position"):
        counted().train(DataPartition()).set_state(b"\x80pickle")


def test_validation_is_one_pass_with_every_record():
    data = counted(validation=grain.MapDataset.range(6))
    assert [np.asarray(batch).tolist() for batch in data.val(DataPartition())] == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("records, expected", [(7, [[4], [5, 6]]), (5, [[], [4]])])
def test_validation_tail_is_shared_out_as_evenly_as_it_goes(records, expected):
    data = counted(validation=grain.MapDataset.range(records))
    shares = [[np.asarray(batch).tolist() for batch in data.val(DataPartition(each, 2))] for each in (0, 1)]
    assert [share[0] for share in shares] == [[0, 1], [2, 3]]
    assert [share[1] for share in shares] == expected


def test_filtered_records_have_no_position():
    data = Dataset.from_grain(grain.MapDataset.range(8).filter(lambda x: x % 2 == 0), batch=4, loading=INLINE)
    with pytest.raises(ValueError, match="filtered MapDataset has no fixed record positions"):
        next(data.train(DataPartition()))


def test_nested_records_are_stacked_leaf_by_leaf():
    pipeline = grain.MapDataset.range(4).map(lambda i: {"x": np.full(2, i), "meta": {"id": i}})
    batch = next(Dataset.from_grain(pipeline, batch=2, loading=INLINE).train(DataPartition()))
    assert batch["x"].tolist() == [[0, 0], [1, 1]] and batch["meta"]["id"].tolist() == [0, 1]


def stream(partition):
    rows = grain.MapDataset.range(100)[partition.index :: partition.count]
    return rows.to_iter_dataset().batch(8 // partition.count)


def test_a_stream_resumes_from_grains_own_state():
    data = Dataset.from_grain(stream, batch=8)
    reader, restored = data.train(DataPartition(1, 2)), data.train(DataPartition(1, 2))
    take(reader, 2)
    restored.set_state(reader.get_state())
    assert take(restored, 2) == take(reader, 2)


def test_a_streams_position_is_refused_under_another_layout():
    data = Dataset.from_grain(stream, batch=8)
    state = data.train(DataPartition(1, 4)).get_state()
    with pytest.raises(ValueError, match="share 1 of 4 cannot continue as share 1 of 2"):
        data.train(DataPartition(1, 2)).set_state(state)


def test_a_stream_batched_too_large_is_refused():
    data = Dataset.from_grain(lambda _: grain.MapDataset.range(99).to_iter_dataset().batch(8), batch=8)
    with pytest.raises(ValueError, match="delivers 8 rows where share 0 of 2 reads 4"):
        next(data.train(DataPartition(0, 2)))


def test_loading_beside_a_function_is_refused():
    with pytest.raises(ValueError, match="loading= is for a MapDataset"):
        Dataset.from_grain(stream, batch=8, loading=INLINE)


def test_epoch_steps_count_whole_batches():
    data = counted(records=10, batch=4)
    assert (data.steps_per_epoch, data.epoch_steps(), data.epoch_steps(3)) == (2, 2, 6)


@pytest.mark.parametrize(
    ("records", "message"), [(None, "known number of records"), (3, "no whole batch of 4")]
)
def test_epochs_need_a_whole_batch_of_known_records(records, message):
    data = Dataset(train=lambda _: iter(()), val=None, records=records, batch=4)
    with pytest.raises(ValueError, match=message):
        data.epoch_steps()


@pytest.mark.parametrize("fields", [{"index": 2, "count": 2}, {"count": 0}, {"index": -1}])
def test_a_share_lies_within_its_count(fields):
    with pytest.raises(ValueError):
        DataPartition(**fields)


def test_loading_names_the_field_it_refuses():
    with pytest.raises(ValueError, match=r"loading\.workers=-1"):
        Loading(workers=-1)


def test_an_empty_pipeline_is_refused():
    with pytest.raises(ValueError, match="holds no records"):
        Dataset.from_grain(grain.MapDataset.range(0), batch=2)


def test_a_closed_iterator_ends():
    reader = counted().train(DataPartition())
    next(reader)
    reader.close()
    assert list(reader) == []
