"""A signal asks for a stop: the run saves, says so, and goes on later as if nothing had happened."""

import os
import signal

import jax
import numpy as np
import optax
import pytest

from dew.testing import in_memory
from dew.training import Checkpoints, Trainer, preemption
from dew.training.preemption import Preempted, requested, watch


@pytest.fixture
def fit(toys, tmp_path):
    draw = np.random.default_rng(1)
    x = draw.normal(size=(10, 3)).astype(np.float32)
    data = in_memory({"x": x, "y": x.sum(1), "m": np.ones(10, np.float32)}, batch=2, seed=0)

    def run(steps, *, stop_at=None, number=signal.SIGTERM, saved=True):
        class Stopper(toys.Recorder):
            def log(self, values, *, step):
                if step == stop_at:
                    os.kill(os.getpid(), number)

        recorder = Stopper()
        trainer = Trainer(
            toys.Regression(noise=0.1),
            optax.adam(0.1),
            key=jax.random.key(0),
            accumulation=2,
            tracker=recorder,
            checkpoints=Checkpoints(tmp_path) if saved else None,
        )
        try:
            with watch():
                return trainer.fit(data, steps=steps, log_every=1), recorder
        except Preempted as stopped:
            return stopped, recorder

    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_run_saves_and_goes_on(fit, tmp_path, number):
    whole, _ = fit(6, saved=False)
    stopped, recorder = fit(6, stop_at=3, number=number)
    assert (stopped.signal, stopped.step, stopped.saved) == (number, 3, True)
    assert recorder.events[-2:] == [("checkpointed", 3, str(tmp_path / "3")), ("finished", 3, "interrupted")]
    resumed, _ = fit(6)
    np.testing.assert_array_equal(whole.params["params"]["w"], resumed.params["params"]["w"])


def test_run_without_checkpoints_says_that_nothing_was_saved(fit):
    stopped, _ = fit(6, stop_at=3, saved=False)
    assert not stopped.saved and "nothing was saved" in str(stopped)


def test_signal_at_the_last_step_finishes_the_run(fit):
    state, recorder = fit(3, stop_at=3)
    assert int(state.step) == 3 and recorder.events[-1][2] == "completed"


def test_second_interrupt_stops_at_once():
    with watch():
        os.kill(os.getpid(), signal.SIGINT)
        assert requested() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_and_request_end_with_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with watch():
        preemption.request(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before and requested() is None
