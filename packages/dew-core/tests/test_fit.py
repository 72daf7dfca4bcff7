"""The fit loop: what happens at which step, what is reported, and what is refused before it begins."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.artifacts import TextSamples, TokenScores
from dew.data.dataset import Dataset
from dew.failure import NothingCounted
from dew.objectives.base import Aux, EMASpec, mean_of_totals, merge_totals
from dew.telemetry.config import ProfileWindow
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.rejections import RejectedSteps

pytestmark = pytest.mark.alone

KEY = jax.random.key(2)


def rows(count=10, **changed):
    draw = np.random.default_rng(1)
    x = draw.normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": np.ones(count, np.float32), **changed}


@dataclass(frozen=True)
class Errors:
    squares: Any
    weights: Any
    note: str = "kept as it is"


class SquaredError:
    name = "squared_error"
    higher_is_better = False
    reads = Errors

    def __call__(self, artifact):
        assert isinstance(artifact.squares, np.ndarray) and artifact.note == "kept as it is"
        return float(artifact.squares.sum()), float(artifact.weights.sum())

    def merge(self, accumulated, contribution):
        return merge_totals(accumulated, contribution)

    def finalize(self, accumulated):
        return mean_of_totals(accumulated)


@pytest.fixture
def scored(toys):
    class Scored(toys.Regression):
        artifact = Errors

        def evaluate(self, params, batch, step):
            error = batch["x"] @ params["params"]["w"] - batch["y"]
            return Errors(error**2, batch["m"])

        def preview(self, params, batch, step, *, scored=None):
            assert isinstance(scored, Errors)
            return TextSamples(prompts=["draw"], texts=[str(float(jax.random.uniform(step.key)))])

    return Scored


def trainer(objective, **options):
    return Trainer(objective, options.pop("optimizer", optax.sgd(0.1)), key=KEY, **options)


def test_ticks_fall_on_their_steps_and_the_end(scored, toys, tmp_path):
    recorder = toys.Recorder()
    trainer(scored(), tracker=recorder, checkpoints=Checkpoints(tmp_path, keep=9)).fit(
        in_memory(rows(), batch=2),
        steps=7,
        log_every=2,
        eval_every=3,
        checkpoint_every=4,
        metrics=[SquaredError()],
        preview=True,
    )
    assert recorder.events[0] == ("started", 0, (7, "rows")) and recorder.events[-1] == (
        "finished",
        7,
        "completed",
    )
    assert list(recorder.of("log")) == [2, 4, 6, 7]
    assert list(recorder.of("evaluated")) == list(recorder.of("preview")) == [3, 6, 7]
    assert list(recorder.of("checkpointed")) == [4, 7]
    assert Checkpoints(tmp_path).steps() == (4, 7)


def test_log_holds_loss_measurements_and_rate(toys):
    recorder = toys.Recorder()
    trainer(toys.Regression(), tracker=recorder).fit(in_memory(rows(), batch=2), steps=4, log_every=2)
    start = trainer(toys.Regression()).initial_state().params["params"]["w"]
    first = recorder.of("log")[2]
    trained = {name for name in first if name.startswith("train/")}
    assert trained == {"train/loss", "train/bias", "train/rows_per_second"}
    data = rows()
    error = data["x"][:2] @ start - data["y"][:2]
    second = start - 0.1 * 2 * data["x"][:2].T @ error / 2
    expected = ((data["x"][2:4] @ second - data["y"][2:4]) ** 2).mean()
    assert first["train/loss"] == pytest.approx(float(expected), rel=1e-5)


def test_validation_weighs_every_row_once(scored, toys):
    """Ten rows in batches of four: the last batch is short."""
    recorder = toys.Recorder()
    weights = np.arange(10, dtype=np.float32)
    state = trainer(scored(), tracker=recorder).fit(
        in_memory(rows(m=weights), batch=4), steps=1, eval_every=1, metrics=[SquaredError()]
    )
    data = rows()
    squares = (data["x"] @ state.params["params"]["w"] - data["y"]) ** 2
    expected = float(squares.sum() / weights.sum())
    assert recorder.of("evaluated")[1] == {"validation/squared_error": pytest.approx(expected, rel=1e-5)}


def test_evaluation_leaves_training_as_it_was(scored):
    runs = [
        trainer(scored(noise=0.1)).fit(in_memory(rows(), batch=2), steps=5, eval_every=every)
        for every in (None, 1)
    ]
    np.testing.assert_array_equal(*(state.params["params"]["w"] for state in runs))


def test_evaluation_draws_alike_in_every_pass_and_previews_do_not(toys):
    class Drawn(toys.Regression):
        def evaluate(self, params, batch, step):
            return TokenScores(losses=jax.random.normal(step.key, (1, 1)), weights=jnp.ones((1, 1)))

        def preview(self, params, batch, step, *, scored=None):
            return (scored, TokenScores(losses=jax.random.normal(step.key, (1, 1)), weights=jnp.ones((1, 1))))

    recorder = toys.Recorder()
    data = in_memory(rows(), batch=5)
    trainer(Drawn(), tracker=recorder).fit(data, steps=2, eval_every=1, preview=True)
    (first, shown), (second, other) = recorder.of("preview").values()
    assert first.losses == second.losses
    assert len({scores.losses.item() for scores in (first, shown, other)}) == 3


def test_batches_of_a_pass_draw_apart(toys):
    seen = []

    class Drawn(toys.Regression):
        def evaluate(self, params, batch, step):
            return Errors(jax.random.uniform(step.key, (1,)), jnp.ones(1))

    class Listed(SquaredError):
        def __call__(self, artifact):
            seen.append(artifact.squares.item())
            return super().__call__(artifact)

    data = in_memory(rows(), batch=5)
    trainer(Drawn()).fit(data, steps=1, eval_every=1, metrics=[Listed()])
    training = {float(jax.random.uniform(jax.random.fold_in(KEY, attempt), (1,))[0]) for attempt in range(2)}
    assert len(seen) == len(set(seen)) == 2 and training.isdisjoint(seen)


def test_average_reaches_evaluation(toys):
    seen = []

    class Averaged(toys.Linear):
        def evaluate(self, params, batch, step):
            seen.append((float(params["params"]["w"]), float(step.ema["params"]["w"])))

    objective = Averaged(ema=EMASpec(lambda n: 0.5))
    data = in_memory({"g": np.float32([-1]), "m": np.float32([1])}, batch=1)
    trainer(objective, optimizer=optax.sgd(1.0)).fit(data, steps=1, eval_every=1)
    assert seen == [(1.0, 0.5)], "an evaluate that reads values on the host runs as it is written"


@pytest.mark.parametrize("steps", [3, 4], ids=["at the end", "on the way"])
def test_a_failing_evaluation_loses_no_step(scored, tmp_path, steps):
    class Failing(SquaredError):
        def __call__(self, artifact):
            raise RuntimeError("no score")

    run = trainer(scored(), checkpoints=Checkpoints(tmp_path))
    with pytest.raises(RuntimeError, match="no score"):
        run.fit(in_memory(rows(), batch=2), steps=steps, eval_every=3, metrics=[Failing()])
    assert Checkpoints(tmp_path).latest == 3


def test_unsupported_window_logs_no_loss(toys):
    recorder = toys.Recorder()
    data = in_memory(rows(m=np.zeros(10, np.float32)), batch=2)
    with pytest.raises(NothingCounted), pytest.warns(UserWarning, match="step 1 counted no target"):
        trainer(toys.Regression(), tracker=recorder).fit(data, steps=1, log_every=1)
    assert "train/loss" not in recorder.of("log")[1]


@pytest.mark.filterwarnings("ignore:step 4 counted no target")
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_counts_nothing_is_not_called_trained(toys, tmp_path, accumulation):
    recorder, checkpoints = toys.Recorder(), Checkpoints(tmp_path)
    run = trainer(toys.Regression(), tracker=recorder, checkpoints=checkpoints, accumulation=accumulation)
    data = in_memory(rows(m=np.zeros(10, np.float32)), batch=2)
    with pytest.raises(NothingCounted, match="none of the steps 1 to 4 counted a target"):
        run.fit(data, steps=4)
    assert recorder.events[-1] == ("finished", 4, "failed") and checkpoints.latest is None


def test_a_step_that_counts_nothing_is_told_of_once_and_the_run_goes_on(toys, recwarn):
    counted = np.ones(10, np.float32)
    counted[:4] = 0
    state = trainer(toys.Regression()).fit(in_memory(rows(m=counted), batch=2), steps=5, log_every=1)
    told = [str(each.message) for each in recwarn if "counted no target" in str(each.message)]
    assert len(told) == 1 and told[0].startswith("step 1 ") and int(state.updates) == 3


def test_data_without_a_field_that_the_objective_reads_is_refused_before_the_run(toys):
    class Named(toys.Regression):
        batch_fields = ("x", "y", "m", "text")

    recorder = toys.Recorder()
    with pytest.raises(
        ValueError, match=r"Named reads 'text' of every batch, and this data yields 'm', 'x', 'y'"
    ):
        trainer(Named(), tracker=recorder).fit(in_memory(rows(), batch=2), steps=4)
    assert not recorder.events


def test_rejected_attempts_are_logged_and_end_the_run(toys):
    recorder = toys.Recorder()
    data = in_memory(rows(y=np.full(10, np.nan, np.float32)), batch=2)
    with pytest.raises(RejectedSteps, match=r"20 attempts, up to step 20.*dynamic_scale=True"):
        trainer(toys.Regression(), tracker=recorder).fit(data, steps=100, log_every=10)
    logged = recorder.of("log")[10]
    assert logged["train/rejected"] == 10 and np.isnan(logged["train/loss"])
    assert recorder.events[-1][2] == "failed"


def test_single_bad_row_costs_its_own_step_alone(toys):
    y = rows()["y"].copy()
    y[4] = np.inf
    state = trainer(toys.Regression()).fit(in_memory(rows(y=y), batch=2), steps=5)
    assert (int(state.step), int(state.updates)) == (5, 4) and np.isfinite(state.params["params"]["w"]).all()


def test_failing_tracker_is_left_out_once(toys):
    class Broken(toys.Recorder):
        def log(self, values, *, step):
            super().log(values, step=step)
            raise OSError("no space")

    broken = Broken()
    with pytest.warns(UserWarning, match=r"tracker Broken failed.*no space"):
        trainer(toys.Regression(), tracker=broken).fit(in_memory(rows(), batch=2), steps=3, log_every=1)
    assert list(broken.of("log")) == [1]


class Source:
    """Endless rows, or so many batches, that notes being closed."""

    def __init__(self, batches=10**9, close_error=None):
        self.left, self.closed, self.close_error = batches, False, close_error

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return rows(2)

    def close(self):
        self.closed = True
        if self.close_error:
            raise self.close_error


def dataset(source):
    return Dataset(train=lambda share: source, val=None, records=None, batch=2)


def test_stream_without_a_position_trains_and_cannot_be_checkpointed(toys, tmp_path):
    with pytest.raises(ValueError, match="reports no read position"):
        trainer(toys.Regression(), checkpoints=Checkpoints(tmp_path)).fit(
            dataset(Source()), steps=3, checkpoint_every=1
        )
    trainer(toys.Regression(), checkpoints=Checkpoints(tmp_path)).fit(dataset(Source()), steps=3)
    with pytest.raises(ValueError, match="without a data position"):
        trainer(toys.Regression(), checkpoints=Checkpoints(tmp_path)).fit(dataset(Source()), steps=4)


def test_data_that_ends_early_is_said_and_closed(toys):
    source = Source(3)
    with pytest.raises(RuntimeError, match="ended after step 3 of 5"):
        trainer(toys.Regression()).fit(dataset(source), steps=5)
    assert source.closed


def test_cleanup_failure_is_noted_on_the_error_that_came_first(toys):
    class Bad(toys.Regression):
        def loss(self, params, batch, step):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        trainer(Bad()).fit(dataset(Source(close_error=OSError("disk"))), steps=5)
    assert any("closing the training data failed too" in note for note in caught.value.__notes__)


def test_rollout_makes_the_training_arrays_once_an_attempt(toys):
    seen = []

    def rollout(params, batch, step):
        seen.append((int(step.step), float(jax.random.uniform(step.key))))
        return {"g": np.float32([1, 1]), "m": np.float32([1, 1])}

    state = trainer(toys.Linear(), optimizer=optax.sgd(1.0), rollout=rollout, accumulation=2).fit(
        dataset(Source()), steps=4
    )
    assert [step for step, _ in seen] == [0, 1, 2, 3] and len({draw for _, draw in seen}) == 4
    losses = {float(jax.random.uniform(jax.random.fold_in(KEY, attempt))) for attempt in range(4)}
    assert losses.isdisjoint(draw for _, draw in seen), "a rollout draws apart from the loss of its attempt"
    assert float(state.params["params"]["w"]) == -2


def test_profile_window_is_traced(toys, tmp_path):
    window = ProfileWindow(directory=str(tmp_path), steps=2, warmup=1)
    trainer(toys.Regression(), profile=window).fit(dataset(Source()), steps=5)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"step_num" in trace.read_bytes(), "a traced step carries its number"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"log_every": 0}, "log_every=0"),
        ({"eval_every": 2}, "no validation data"),
        ({"metrics": [SquaredError()]}, "squared_error.*set eval_every"),
        ({"preview": True}, "preview=True.*set eval_every"),
    ],
)
def test_contradicting_options_are_refused_before_any_work(toys, options, message):
    untouched = Dataset(train=lambda share: pytest.fail("opened"), val=None, records=None, batch=2)
    with pytest.raises(ValueError, match=message):
        trainer(toys.Regression()).fit(untouched, **{"steps": 3, **options})


def test_metric_for_another_artifact_is_refused(scored, toys):
    class Other(SquaredError):
        reads = TokenScores

    data = in_memory(rows(), batch=2)
    with pytest.raises(ValueError, match=r"reads TokenScores.*Scored evaluates to Errors"):
        trainer(scored()).fit(data, steps=1, eval_every=1, metrics=[Other()])
    with pytest.raises(TypeError, match=r"reads Errors.*returned NoneType"):
        trainer(toys.Regression()).fit(data, steps=1, eval_every=1, metrics=[SquaredError()])


def test_metrics_may_be_any_dtype(toys):
    class Counting(toys.Regression):
        def loss(self, params, batch, step):
            stats, _ = super().loss(params, batch, step)
            return stats, Aux({"count": jnp.sum(batch["m"] > 0), "half": jnp.bfloat16(0.5)})

    recorder = toys.Recorder()
    trainer(Counting(), tracker=recorder).fit(in_memory(rows(), batch=2), steps=1, log_every=1)
    assert (recorder.of("log")[1]["train/count"], recorder.of("log")[1]["train/half"]) == (2.0, 0.5)
