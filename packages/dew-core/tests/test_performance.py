"""The figures that a run reports about its use of time and devices."""

import time
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from dew.telemetry import ProfileWindow
from dew.telemetry.account import DATA, EVALUATION, PROFILE, REDONE, SAVE, STEP, TimeAccount
from dew.telemetry.cost import StepCost
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.performance import Performance, memory
from dew.training.rate import Meter

KEY = jax.random.key(2)


def rows(count=64):
    x = np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": np.ones(count, np.float32)}


@pytest.fixture
def accounts(toys):
    class Accounts(toys.Recorder):
        def accounted(self, account, *, step):
            self.events.append(("accounted", step, account))

    return Accounts


def fit(objective, tracker, *, slow=0.0, steps=6, account=None, reached=0, **options):
    data = in_memory(rows(), batch=4)
    if slow:
        opened = data.train

        def train(share):
            source = opened(share)
            fast = type(source).__next__
            kind = type("Slow", (type(source),), {"__next__": lambda self: (time.sleep(slow), fast(self))[1]})
            source.__class__ = kind
            return source

        data = type(data)(train=train, val=data.val, records=data.records, batch=data.batch)
    trainer = Trainer(objective, optax.sgd(0.1), key=KEY, tracker=tracker, **options)
    trainer.account, trainer.reached = account, reached
    return trainer.fit(data, steps=steps, log_every=2)


def test_shares_of_the_time_sum_to_one(toys, accounts, tmp_path):
    tracker, account = accounts(), TimeAccount()
    fit(toys.Regression(), tracker, account=account, checkpoints=Checkpoints(tmp_path))
    last = tracker.of("accounted")[6]
    whole = time.monotonic() - account.began
    assert sum(last["seconds"].values()) == pytest.approx(whole, abs=0.5)
    assert last["seconds"][SAVE] > 0 and last["seconds"][STEP] > 0
    assert 0 < last["first_step_s"] < whole


def test_a_slow_source_shows_as_waiting_and_not_as_steps(toys, accounts):
    tracker = accounts()
    fit(toys.Regression(), tracker, slow=0.05)
    assert tracker.of("log")[6]["performance/data_wait"] > 0.8
    assert tracker.of("accounted")[6]["seconds"][DATA] > 0.15
    assert tracker.of("log")[6]["performance/step_seconds"] == pytest.approx(0.05, rel=0.4)


def test_steps_up_to_the_furthest_of_an_earlier_process_are_redone(toys, accounts):
    tracker = accounts()
    fit(toys.Regression(), tracker, reached=4, slow=0.01)
    assert tracker.of("accounted")[4]["seconds"][STEP] == 0
    assert tracker.of("accounted")[6]["seconds"][REDONE] > 0


def test_starting_the_profiler_and_writing_its_trace_are_no_steps(toys, accounts, tmp_path, monkeypatch):
    now, tracker = [0.0], accounts()
    for name, seconds in (("start_trace", 3.0), ("stop_trace", 4.0)):
        spend = lambda *path, seconds=seconds: now.__setitem__(0, now[0] + seconds)  # noqa: E731
        monkeypatch.setattr(jax.profiler, name, spend)
    window = ProfileWindow(str(tmp_path), steps=2, warmup=2)
    fit(toys.Regression(), tracker, account=TimeAccount(0.0, lambda: now[0]), profile=window)
    spent = {name: each for name, each in tracker.of("accounted")[6]["seconds"].items() if each}
    assert spent == {PROFILE: 7.0}


def test_the_step_is_compiled_once_and_the_time_is_no_step(toys, accounts):
    tracker = accounts()
    fit(toys.Regression(), tracker)
    last = tracker.of("accounted")[6]
    assert last["step_compilations"] == 1 and last["compilations"] >= 1
    assert last["seconds"]["compile"] > 0 and last["seconds"][EVALUATION] == 0


def priced(toys, flops):
    class Priced(toys.Regression):
        def step_cost(self, batch):
            return StepCost(flops=flops * batch["x"].shape[0], dtype="bfloat16", counts="rows")

    return Priced()


def measured(objective, kind, seconds=2.0):
    """The values of two steps of 4 rows in `seconds` on two devices of `kind`."""
    now = [0.0]
    device = SimpleNamespace(device_kind=kind, process_index=0, memory_stats=lambda: None)
    mesh = SimpleNamespace(devices=np.array([device, device]))
    performance = Performance(objective, mesh, TimeAccount(0.0, lambda: now[0]))
    performance._meter = Meter(lambda: now[0])
    performance.settle(np.zeros(()))
    for _ in range(2):
        now[0] += seconds / 2
        performance.stepped({"x": np.zeros((4, 3))}, 40)
    return performance.values()


def test_utilization_is_model_flops_over_time_devices_and_peak(toys):
    """2 steps of 4 rows of 197e12: 1576e12 in 2 s are 788e12 a second, over two v5e of 197e12 twice."""
    values = measured(priced(toys, 197e12), "TPU v5 lite")
    assert values["performance/mfu"] == pytest.approx(2.0)
    assert values["performance/model_flops_per_second"] == pytest.approx(788e12)
    assert values["train/rows_per_second"] == 40 and values["performance/samples_per_second"] == 4


def test_no_utilization_without_a_peak_or_a_formula(toys):
    assert "performance/mfu" not in measured(priced(toys, 1e9), "cpu")
    unknown = measured(toys.Regression(), "TPU v5 lite")
    assert not {"performance/mfu", "performance/model_flops_per_second"} & unknown.keys()


def test_memory_is_what_the_backend_reports():
    stats = {"peak_bytes_in_use": 7, "bytes_limit": 9}
    devices = [
        SimpleNamespace(process_index=0, memory_stats=lambda: stats),
        SimpleNamespace(process_index=0, memory_stats=lambda: {**stats, "peak_bytes_in_use": 8}),
        SimpleNamespace(process_index=1, memory_stats=lambda: {"peak_bytes_in_use": 99}),
    ]
    assert memory(devices) == {"memory_peak_bytes": 8, "memory_limit_bytes": 9}
    assert memory([SimpleNamespace(process_index=0, memory_stats=lambda: None)]) == {}
