"""A run that is stopped and resumed is, bit for bit, the run that was not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.objectives.base import Aux, EMASpec
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer

STEPS, EPOCH = 16, 10


def records(count=20):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 3)).astype(np.float32)
    m = draw.integers(0, 4, size=count).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": m, "id": np.arange(count)}


@pytest.fixture
def fit(toys):
    """Train a noisy regression to `steps` and return its state and everything it logged."""

    class Named(toys.Regression):
        def loss(self, params, batch, step):
            stats, aux = super().loss(params, batch, step)
            return stats, Aux({**aux.metrics, "first": batch["id"][0], "second": batch["id"][1]})

    class Composite(toys.Spread):
        def loss(self, params, batch, step):
            stats, aux = super().loss(params, {"x": batch["x"] + jax.random.normal(step.key)}, step)
            return stats, aux.replace(metrics={"first": batch["id"][0], "second": batch["id"][1]})

    def run(steps, directory=None, *, accumulation=4, composite=False, rows=None, batch=2, **options):
        objective = Composite() if composite else Named(noise=0.1, ema=EMASpec(lambda n: 0.5 + 0.01 * n))
        recorder = toys.Recorder()
        trainer = Trainer(
            objective,
            optax.adamw(optax.cosine_decay_schedule(0.1, 8)),
            key=jax.random.key(7),
            accumulation=accumulation,
            tracker=recorder,
            checkpoints=None if directory is None else Checkpoints(directory, keep=1),
            **options,
        )
        data = in_memory(rows or records(), batch=batch, seed=3)
        state = trainer.fit(
            data, steps=steps, log_every=1, checkpoint_every=None if directory is None else 100
        )
        logs = {
            step: {
                name: value
                for name, value in values.items()
                if not (name.endswith("per_second") or name.startswith("performance/"))
            }
            for step, values in recorder.of("log").items()
        }
        return state, logs

    return run


def assert_identical(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize("cut", [8, 9, 10, 11])
def test_run_cut_after_any_microbatch_resumes_bit_for_bit(fit, tmp_path, cut, composite):
    """The window of 8 to 12 spans the epoch's end at 10."""
    whole, logs = fit(STEPS, composite=composite)
    _, before = fit(cut, tmp_path, composite=composite)
    resumed, after = fit(STEPS, tmp_path, composite=composite)
    assert_identical(whole, resumed)
    assert repr(logs) == repr({**before, **after})
    ids = [
        int(values[f"train/{which}"])
        for step, values in sorted(logs.items())
        for which in ("first", "second")
    ]
    assert sorted(ids[:20]) == list(range(20)) and ids[:20] != ids[20:]


def test_run_cut_in_every_place_resumes_bit_for_bit(fit, tmp_path):
    whole, logs = fit(9)
    joined = {}
    for steps in range(1, 10):
        resumed, part = fit(steps, tmp_path)
        joined |= part
    assert_identical(whole, resumed)
    assert logs == joined


def test_scale_and_its_history_are_resumed(fit, tmp_path):
    whole, _ = fit(6, accumulation=2, dynamic_scale=True)
    fit(3, tmp_path, accumulation=2, dynamic_scale=True)
    resumed, _ = fit(6, tmp_path, accumulation=2, dynamic_scale=True)
    assert_identical(whole, resumed)
    assert int(resumed.scale.streak) == 6


def test_finished_run_does_no_work(fit, tmp_path, monkeypatch):
    done, _ = fit(4, tmp_path)
    monkeypatch.setattr(Trainer, "compile", lambda *arguments: pytest.fail("compiled"))
    again, logs = fit(4, tmp_path)
    assert_identical(done, again)
    assert logs == {}


def test_other_window_is_refused_by_name(fit, tmp_path):
    fit(4, tmp_path, accumulation=4)
    with pytest.raises(ValueError, match=r"accumulation=2.*accumulation=4"):
        fit(8, tmp_path, accumulation=2)


def test_other_batch_is_refused_by_name(fit, tmp_path):
    fit(4, tmp_path)
    with pytest.raises(ValueError, match="batch was 2, is 4"):
        fit(8, tmp_path, batch=4)


def test_other_records_are_refused_by_name(fit, tmp_path):
    fit(4, tmp_path)
    with pytest.raises(ValueError, match="records was 20, is 10"):
        fit(8, tmp_path, rows=records(10))


def test_lost_average_is_refused_with_the_leaf(fit, tmp_path, toys):
    fit(4, tmp_path)
    trainer = Trainer(
        toys.Regression(),
        optax.adamw(0.1),
        key=jax.random.key(7),
        accumulation=4,
        checkpoints=Checkpoints(tmp_path),
    )
    with pytest.raises(ValueError, match=r"ema/params/w: float32\[3\] in the checkpoint, absent here"):
        trainer.place()
