"""Emergency copies on a local disk: own folder and cadence, the newest of both resumed from, no other run."""

import shutil

import jax
import numpy as np
import optax
import pytest

from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.checkpoints import CheckpointError


class Crash(Exception):
    """The run ends here, and nothing is saved on the way out."""


@pytest.fixture
def fit(toys, tmp_path):
    """Train to `steps`, copying every 2 steps; `crash_at` ends the run before that attempt."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(10, 3)).astype(np.float32)
    data = in_memory({"x": x, "y": x.sum(1), "m": np.ones(10, np.float32)}, batch=2, seed=0)

    def run(steps, *, crash_at=None, name="run", checkpoint_every=5, **options):
        def rollout(params, batch, step):
            if seen[0] == crash_at:
                raise Crash
            seen[0] += 1
            return batch

        options = options or {"local_directory": tmp_path / "local", "local_every": 2}
        checkpoints = Checkpoints(tmp_path / name, keep=1, **options)
        seen = [checkpoints.latest or 0]
        recorder = toys.Recorder()
        trainer = Trainer(
            toys.Regression(noise=0.1),
            optax.adam(0.1),
            key=jax.random.key(0),
            tracker=recorder,
            checkpoints=checkpoints,
            rollout=rollout,
        )
        try:
            state = trainer.fit(data, steps=steps, log_every=1, checkpoint_every=checkpoint_every)
        except Crash:
            state = None
        return state, recorder

    return run


def copies(tmp_path):
    return sorted(path.name for path in (tmp_path / "local").glob("*/*") if path.name.isdigit())


def test_a_run_goes_on_from_the_newest_copy_bit_for_bit(fit, tmp_path):
    whole, _ = fit(12, name="whole", local_directory=None, local_every=None)
    fit(12, crash_at=9)
    assert copies(tmp_path) == ["8"] and Checkpoints(tmp_path / "run").steps() == (5,)
    resumed, recorder = fit(12)
    assert recorder.events[0][:2] == ("started", 8)
    np.testing.assert_array_equal(whole.params["params"]["w"], resumed.params["params"]["w"])


def test_a_newer_checkpoint_goes_before_an_older_copy(fit, tmp_path):
    fit(12, crash_at=5)
    assert copies(tmp_path) == ["4"]
    _, recorder = fit(12)
    assert recorder.events[0][:2] == ("started", 5)


def test_another_run_and_an_emptied_one_see_no_copies(fit, tmp_path):
    fit(12, crash_at=5, checkpoint_every=None)
    options = {"local_directory": tmp_path / "local", "local_every": 2}
    assert Checkpoints(tmp_path / "run", **options).latest == 4
    assert Checkpoints(tmp_path / "run").latest is None
    assert Checkpoints(tmp_path / "other", **options).latest is None
    shutil.rmtree(tmp_path / "run")
    assert Checkpoints(tmp_path / "run", **options).latest is None


def test_a_torn_copy_is_named_and_the_checkpoint_before_it_used(fit, tmp_path):
    fit(12, crash_at=9)
    (copy,) = (path for path in (tmp_path / "local").glob("*/8"))
    (copy / "files.json").unlink()
    with pytest.warns(UserWarning, match="8 is no complete checkpoint; it is passed over"):
        _, recorder = fit(12)
    assert recorder.events[0][:2] == ("started", 5)


def test_a_failed_copy_stops_the_run(fit, tmp_path):
    (tmp_path / "local").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be kept in .*/local/"):
        fit(12)


def test_copies_are_refused_by_halves_and_without_a_cadence(tmp_path):
    with pytest.raises(ValueError, match="go together"):
        Checkpoints(tmp_path, local_every=5)
    with pytest.raises(ValueError, match="local_every=0 must be at least 1"):
        Checkpoints(tmp_path, local_directory=tmp_path, local_every=0)
