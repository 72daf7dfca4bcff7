"""Read-ahead on a worker thread: order, bounds, failures, positions and closing."""

import threading
import time
import weakref

import jax
import numpy as np
import pytest

from dew.training.config import MeshSpec
from dew.training.mesh import build_mesh
from dew.training.prefetch import DevicePrefetchIterator


class Source:
    """Counts up; `fail_at` raises there, `end` ends there, `gate` blocks each read until it is set."""

    def __init__(self, *, end=None, fail_at=None, close_error=None, gate=None):
        self.at, self.end, self.fail_at, self.close_error, self.gate = 0, end, fail_at, close_error, gate
        self.events = []
        self.closed = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.events.append("next")
        if self.gate is not None:
            self.gate.wait()
        if self.at == self.fail_at:
            raise OSError(f"record {self.at} is broken")
        if self.at == self.end:
            raise StopIteration
        self.at += 1
        return {"x": np.full(8, self.at - 1)}

    def get_state(self):
        return str(self.at).encode()

    def set_state(self, state):
        self.events.append("set")
        self.at = int(state)

    def close(self):
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


@pytest.fixture
def mesh():
    return build_mesh(MeshSpec())


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert not [each for each in threading.enumerate() if each.name == "dew-prefetch"]


def first(batch):
    return int(batch["x"][0])


def until(condition, timeout=5.0):
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_batches_arrive_in_order_as_global_arrays(mesh):
    with DevicePrefetchIterator(Source(end=5), mesh) as reader:
        batches = list(reader)
    assert [first(batch) for batch in batches] == [0, 1, 2, 3, 4]
    assert isinstance(batches[0]["x"], jax.Array) and batches[0]["x"].sharding.mesh == mesh


def test_position_is_that_of_the_last_batch_delivered(mesh):
    source = Source()
    with DevicePrefetchIterator(source, mesh, depth=3) as reader:
        assert reader.source_state is None
        next(reader), next(reader)
        until(lambda: source.at >= 5)
        assert reader.source_state == b"2"


def test_saved_position_is_restored_on_the_first_read(mesh):
    source = Source()
    with DevicePrefetchIterator(source, mesh, source_state=b"7") as reader:
        assert source.events == [] and reader.source_state == b"7"
        assert first(next(reader)) == 7


def test_read_ahead_stops_at_depth_and_one_in_flight(mesh):
    source = Source()
    with DevicePrefetchIterator(source, mesh, depth=2) as reader:
        next(reader)
        until(lambda: source.at == 4)
        time.sleep(0.05)
        assert source.at == 4


def test_failure_follows_the_batches_before_it(mesh):
    with DevicePrefetchIterator(Source(fail_at=2), mesh, depth=4) as reader:
        assert [first(next(reader)), first(next(reader))] == [0, 1]
        with pytest.raises(OSError, match="record 2 is broken"):
            next(reader)
        with pytest.raises(StopIteration):
            next(reader)


def test_failed_restore_arrives_at_the_first_next_and_closes_the_source(mesh):
    source = Source()
    with DevicePrefetchIterator(source, mesh, source_state=b"x") as reader, pytest.raises(ValueError):
        next(reader)
    assert source.closed == 1


def test_source_is_closed_once_when_it_ends(mesh):
    source = Source(end=1)
    with DevicePrefetchIterator(source, mesh) as reader:
        assert len(list(reader)) == 1
    assert source.closed == 1


def test_closing_unused_finalizes_without_a_read(mesh):
    source = Source()
    reader = DevicePrefetchIterator(source, mesh, source_state=b"3")
    reader.close()
    assert source.closed == 1 and source.events == []
    assert list(reader) == []


def test_early_close_drops_read_failures_that_nobody_asked_for(mesh):
    source = Source(fail_at=1)
    reader = DevicePrefetchIterator(source, mesh)
    next(reader)
    until(lambda: source.closed == 1)
    reader.close()


def test_closing_lets_go_of_unread_batches(mesh, monkeypatch):
    placed = []

    def place(batch, mesh):
        array = jax.numpy.asarray(batch["x"])
        placed.append(weakref.ref(array))
        return {"x": array}

    monkeypatch.setattr("dew.training.distributed.shard_batch", place)
    reader = DevicePrefetchIterator(Source(), mesh, depth=2)
    next(reader)
    until(lambda: len(placed) == 4)
    reader.close()
    assert [reference() for reference in placed] == [None] * 4


@pytest.mark.parametrize("used", [True, False])
def test_failing_source_close_is_reported_once(mesh, used):
    reader = DevicePrefetchIterator(Source(close_error=OSError("stuck file")), mesh)
    if used:
        next(reader)
    with pytest.raises(OSError, match="stuck file"):
        reader.close()
    reader.close()


def test_failing_close_of_an_ended_source_reaches_the_consumer(mesh):
    with DevicePrefetchIterator(Source(end=1, close_error=OSError("stuck file")), mesh) as reader:
        next(reader)
        with pytest.raises(OSError, match="stuck file"):
            next(reader)


def test_a_failing_close_is_noted_on_the_read_failure(mesh):
    source = Source(fail_at=0, close_error=OSError("stuck file"))
    with DevicePrefetchIterator(source, mesh) as reader, pytest.raises(OSError, match="record 0") as caught:
        next(reader)
    assert "stuck file" in caught.value.__notes__[0]


def test_a_read_that_never_returns_times_out_and_close_can_be_retried(mesh):
    gate = threading.Event()
    source = Source(gate=gate)
    reader = DevicePrefetchIterator(source, mesh)
    consumer = threading.Thread(target=lambda: next(reader, None))
    consumer.start()
    until(lambda: source.events == ["next"])
    with pytest.raises(TimeoutError, match=r"did not stop within 0\.05 s"):
        reader.close(timeout=0.05)
    consumer.join(5)
    assert not consumer.is_alive()
    gate.set()
    reader.close()
    assert source.closed == 1


def test_request_stop_interrupts_a_blocked_read(mesh):
    gate = threading.Event()
    source = Source(gate=gate)
    source.request_stop = gate.set
    reader = DevicePrefetchIterator(source, mesh)
    consumer = threading.Thread(target=lambda: next(reader, None))
    consumer.start()
    until(lambda: source.events == ["next"])
    reader.close()
    consumer.join(5)
    assert source.closed == 1 and not consumer.is_alive()


def test_body_error_is_kept_when_closing_fails_too(mesh):
    source = Source(close_error=OSError("stuck file"))
    with pytest.raises(KeyError) as caught, DevicePrefetchIterator(source, mesh):
        raise KeyError("body")
    assert "stuck file" in caught.value.__notes__[0]


def test_a_batch_the_mesh_cannot_hold_fails_like_a_read(mesh):
    source = Source()
    source.__class__ = type("Odd", (Source,), {"__next__": lambda self: {"x": object()}})
    with DevicePrefetchIterator(source, mesh) as reader, pytest.raises(TypeError):
        next(reader)


def test_depth_must_be_positive(mesh):
    with pytest.raises(ValueError, match="depth=0"):
        DevicePrefetchIterator(Source(), mesh, depth=0)
