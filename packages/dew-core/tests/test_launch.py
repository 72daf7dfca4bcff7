"""`RunConfig.train`: a run's directory, its record, going on, and finishing."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import types

import grain
import jax
import numpy as np
import pytest

import dew.plugins.loader as loader
from dew.cli.errors import is_mistake
from dew.config import OptimConfig, RunConfig, TrainerConfig
from dew.data.config import DatasetSpec, Loading, Ramp
from dew.data.dataset import Dataset
from dew.inputs.spec import Field, InputSpec
from dew.plugins import Component
from dew.telemetry import ProfileWindow, read_journal
from dew.telemetry.rows import encode_row
from dew.training.config import MeshSpec
from dew.training.launch import needed_words
from dew.training.optim.config import Linear
from dew.training.preemption import Preempted
from dew.training.run_lock import sole_trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows(DatasetSpec):
    """Forty rows of a line with three slopes."""

    loading: Loading = dataclasses.field(default_factory=lambda: Loading(workers=0))

    def load(self, *, batch, tokenize=None):
        inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        rows = [{"x": x, "y": x @ np.arange(3, dtype=np.float32), "m": np.float32(1)} for x in inputs]
        source = grain.MapDataset.source(rows).seed(self.seed).shuffle()
        return Dataset.from_grain(source, batch=batch, records=40, loading=self.loading)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Register `Rows` as the dataset `rows`."""
    module = types.ModuleType("rows_parts")
    module.Rows = Rows
    monkeypatch.setitem(sys.modules, "rows_parts", module)
    held = loader.installed()
    part = Component("dataset", "rows", "rows_parts:Rows", "A line.")
    catalog = dataclasses.replace(held, components={**held.components, ("dataset", "rows"): part})
    monkeypatch.setattr(loader, "installed", lambda: catalog)


def config(folder, *, steps=6, optim=None, objective="line", **trainer):
    return RunConfig(
        data=Rows(),
        optim=optim or OptimConfig(learning_rate=0.1),
        trainer=TrainerConfig(
            **{"checkpoint_dir": str(folder), "batch_size": 8, "steps": steps, "log_every": 2} | trainer
        ),
        objective=objective,
    )


def train(run, toys, *, name="a", objective=None, batch=8, **options):
    return run.train(objective or toys.Regression(), run.data.load(batch=batch), name=name, **options)


def journal(folder, name="a"):
    lines = (folder / name / "tracking" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_leaves_its_record_checkpoints_and_journal(tmp_path, toys, capsys):
    run = config(tmp_path)
    state = train(run, toys)
    assert int(state.step) == 6
    assert RunConfig.load(str(tmp_path / "a")) == dataclasses.replace(
        run, trainer=dataclasses.replace(run.trainer, name="a")
    )
    assert (tmp_path / "a" / "checkpoints" / "6").is_dir()
    assert {row["step"] for row in journal(tmp_path) if row["kind"] == "metrics"} == {2, 4, 6}
    assert f"The run is in {tmp_path}/a" in capsys.readouterr().out


def test_going_on_equals_training_through(tmp_path, toys):
    whole = train(config(tmp_path, steps=9), toys, name="whole")
    train(config(tmp_path, steps=4), toys)
    parts = train(config(tmp_path, steps=9), toys)
    np.testing.assert_array_equal(parts.params["params"]["w"], whole.params["params"]["w"])


def test_steps_that_a_killed_process_had_done_are_booked_as_redone(tmp_path, toys):
    """The journal tells of step 8, the checkpoint is of step 4."""
    train(config(tmp_path, steps=4), toys)
    with (tmp_path / "a" / "tracking" / "journal.jsonl").open("ab") as file:
        file.write(encode_row("metrics", step=8, time=1e9, values={"train/loss": 1.0}))
    train(config(tmp_path, steps=8), toys)
    account = read_journal(tmp_path / "a").lives[-1].account["seconds"]
    assert account["step"] == 0 and account["redone"] > 0 and account["restore"] > 0
    train(config(tmp_path, steps=10), toys)
    assert read_journal(tmp_path / "a").lives[-1].account["seconds"]["step"] > 0


def test_a_finished_run_does_no_work_and_says_so(tmp_path, toys, capsys):
    first = train(config(tmp_path), toys)
    before = journal(tmp_path)
    again = train(config(tmp_path), toys)
    np.testing.assert_array_equal(first.params["params"]["w"], again.params["params"]["w"])
    assert journal(tmp_path) == before
    assert f"{tmp_path}/a is finished: step 6 of 6" in capsys.readouterr().out


def test_what_decides_the_result_may_not_change_and_is_named_with_both_values(tmp_path, toys):
    train(config(tmp_path), toys)
    record = (tmp_path / "a" / "run.json").read_text()
    changed = config(tmp_path, steps=8, seed=3, optim=OptimConfig(learning_rate=0.2))
    with pytest.raises(ValueError) as refused:
        train(changed, toys)
    assert "optim.learning_rate was 0.1, now 0.2; trainer.seed was 0, now 3" in str(refused.value)
    assert "trainer.steps" not in str(refused.value)
    assert (tmp_path / "a" / "run.json").read_text() == record


def test_length_and_cadences_may_change_and_the_old_values_go_to_the_journal(tmp_path, toys):
    train(config(tmp_path), toys)
    train(config(tmp_path, steps=8, log_every=1, keep=5), toys)
    assert RunConfig.load(str(tmp_path / "a")).trainer.steps == 8
    resumed = next(row for row in journal(tmp_path) if row["kind"] == "resumed")
    assert resumed["summary"]["changed"] == {
        "trainer.keep": [2, 5],
        "trainer.steps": [6, 8],
        "trainer.log_every": [2, 1],
    }


def test_a_run_that_never_saved_may_start_over_with_other_settings(tmp_path, toys):
    class Broken(toys.Regression):
        def loss(self, params, batch, step):
            raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="broken on purpose"):
        train(config(tmp_path), toys, objective=Broken())
    assert int(train(config(tmp_path, seed=5), toys).step) == 6
    assert RunConfig.load(str(tmp_path / "a")).trainer.seed == 5


def test_schedules_span_the_updates_of_the_run(tmp_path, toys):
    optim = OptimConfig(learning_rate=1.0, optimizer="adam", schedule=Linear())
    run = config(tmp_path, steps=4, accumulation=2, optim=optim)
    state = train(run, toys)
    # Two updates at rates 1 and 1/2, so Adam's bounded steps move a weight by at most 3/2.
    start = toys.Regression().init(jax.random.fold_in(jax.random.key(0), 0xFFFFFFFD))["params"]["w"]
    moved = np.abs(np.asarray(state.params["params"]["w"] - start))
    assert int(state.updates) == 2
    assert 1.0 < moved.max() <= 1.5 + 1e-5


def test_a_dataset_at_another_batch_is_refused_before_anything_is_written(tmp_path, toys):
    with pytest.raises(
        ValueError, match=r"opened at batch 4 and trainer\.batch_size=8; load it with batch=8"
    ):
        train(config(tmp_path), toys, batch=4)
    assert not list(tmp_path.iterdir())


def test_a_run_shorter_than_one_update_is_refused(tmp_path, toys):
    with pytest.raises(ValueError, match=r"3 steps ends before its first update of trainer\.accumulation=4"):
        train(config(tmp_path, steps=3, accumulation=4), toys)


def test_evaluating_without_validation_data_is_refused_where_it_was_asked_for(tmp_path, toys):
    with pytest.raises(ValueError, match=r"trainer\.eval_every=2, but the dataset has no validation data"):
        train(config(tmp_path, eval_every=2), toys)


def test_without_an_objectives_name_nothing_is_trained(tmp_path, toys):
    with pytest.raises(ValueError, match="objective=None cannot be saved"):
        train(config(tmp_path, objective=None), toys)
    assert not (tmp_path / "a").exists()


def test_a_stopped_run_saves_says_how_to_go_on_and_does(tmp_path, toys, capsys):
    whole = train(config(tmp_path, steps=9), toys, name="whole")

    class Stopping(toys.Regression):
        def count_units(self, batch):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().count_units(batch)

    with pytest.raises(Preempted):
        train(config(tmp_path, steps=9), toys, objective=Stopping())
    assert "Go on with: train(..., name='a')" in capsys.readouterr().out
    state = train(config(tmp_path, steps=9), toys)
    np.testing.assert_array_equal(state.params["params"]["w"], whole.params["params"]["w"])


def test_a_fresh_name_begins_with_the_recipe_unless_one_is_set(tmp_path):
    assert config(tmp_path).run_name("lm").startswith("lm-")
    assert config(tmp_path, name="mine").run_name("lm") == "mine"


def test_a_run_that_another_process_trains_is_refused_and_left_alone(tmp_path, toys, monkeypatch):
    monkeypatch.setattr("dew.telemetry.appender.LOCK_WAIT_S", 0.0)
    train(config(tmp_path), toys)
    record = (tmp_path / "a" / "run.json").read_text()
    with (
        sole_trainer(str(tmp_path / "a")),
        pytest.raises(BlockingIOError, match=r"a is being trained by another process.*trainer\.name"),
    ):
        train(config(tmp_path, steps=9), toys)
    assert (tmp_path / "a" / "run.json").read_text() == record
    assert int(train(config(tmp_path, steps=9), toys).step) == 9


def test_other_data_is_a_mistake_that_leaves_no_trace_in_the_journal(tmp_path, toys):
    def over(count):
        rows = [{"x": np.ones(3, np.float32), "y": np.float32(1), "m": np.float32(1)}] * count
        return Dataset.from_grain(grain.MapDataset.source(rows), batch=8, loading=Loading(workers=0))

    config(tmp_path).train(toys.Regression(), over(40), name="a")
    before = journal(tmp_path)
    with pytest.raises(ValueError, match="other data: records was 40, is 48") as refused:
        config(tmp_path, steps=9).train(toys.Regression(), over(48), name="a")
    assert journal(tmp_path) == before, "the completed run did not become a failed one"
    assert is_mistake(refused.value)


def test_data_without_what_the_objective_reads_leaves_no_folder(tmp_path, toys):
    class Named(toys.Regression):
        inputs = InputSpec(Field("text", (3,)))

    settings = config(tmp_path / "runs")
    with pytest.raises(ValueError, match=r"Named reads 'text' of every batch, .*'m', 'x', 'y'") as refused:
        settings.train(Named(), settings.data.load(batch=settings.trainer.batch_size), name="a")
    assert is_mistake(refused.value) and not (tmp_path / "runs").exists()


def test_a_profile_that_would_begin_after_the_end_is_refused(tmp_path, toys):
    window = ProfileWindow(str(tmp_path / "trace"), steps=1, warmup=6)
    with pytest.raises(ValueError, match=r"warmup of 6, and the run has 6; lower trainer\.profile\.warmup"):
        train(config(tmp_path, profile=window), toys)


def test_a_profiled_run_ends_with_the_command_that_reads_its_trace(tmp_path, toys, capsys):
    window = ProfileWindow(str(tmp_path / "trace"), steps=1, warmup=4)
    train(config(tmp_path, profile=window), toys)
    assert f"  dew profile {tmp_path}/trace\n" in capsys.readouterr().out
    train(config(tmp_path, steps=8, profile=window), toys)
    said = capsys.readouterr().out
    assert "No step was traced: 2 ran, and trainer.profile.warmup=4" in said and "dew profile" not in said


def test_a_run_whose_checkpoints_are_gone_does_not_start_over_silently(tmp_path, toys):
    train(config(tmp_path), toys)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    with pytest.raises(ValueError, match=r"no complete checkpoint, but .* at step 6"):
        train(config(tmp_path, steps=9), toys)


def test_a_batch_larger_than_the_data_is_refused(tmp_path, toys):
    with pytest.raises(ValueError, match=r"trainer\.batch_size=41 is more than the 40 training records"):
        train(config(tmp_path, batch_size=41), toys, batch=41)
    assert not (tmp_path / "a").exists()


def test_a_stop_is_seen_while_the_data_keeps_it_waiting(tmp_path, toys):
    release = threading.Event()

    class Stuck:
        def __init__(self, rows):
            self.rows, self.left = rows, 3

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                release.wait(30)
            return next(self.rows)

        def request_stop(self):
            release.set()

        def __getattr__(self, name):
            return getattr(self.rows, name)

    run = config(tmp_path)
    held = run.data.load(batch=8)
    data = dataclasses.replace(held, train=lambda share: Stuck(held.train(share)))
    threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGTERM]).start()
    with pytest.raises(Preempted, match="after step 3; its checkpoint is saved"):
        run.train(toys.Regression(), data, name="a")
    assert (tmp_path / "a" / "checkpoints" / "3").is_dir()


def test_a_mesh_that_does_not_fit_leaves_no_folder(tmp_path, toys):
    with pytest.raises(ValueError, match="fsdp"):
        train(config(tmp_path, mesh=MeshSpec(fsdp=3)), toys)
    assert not (tmp_path / "a").exists()


def test_a_model_that_does_not_fit_leaves_no_folder(tmp_path, toys):
    def refused(key):
        raise ValueError("patch_size=3 must divide 8")

    class Misfit(toys.Regression):
        @property
        def initializer(self):
            return jax.tree_util.Partial(refused)

    with pytest.raises(ValueError, match="patch_size=3"):
        config(tmp_path).train(Misfit(), Rows().load(batch=8), name="a")
    assert not (tmp_path / "a").exists()


def test_fewer_steps_than_were_taken_read_as_what_they_are(tmp_path, toys, capsys):
    train(config(tmp_path), toys)
    train(config(tmp_path, steps=4), toys)
    assert "is finished: step 6 is past it. Raise trainer.steps=4" in capsys.readouterr().out


def test_a_rollout_makes_what_the_run_trains_on(tmp_path, toys):
    def blank(params, batch, step):
        return {**batch, "x": batch["x"] * 0.0}  # without inputs there is no gradient

    def weights(name, steps, rollout):
        run = config(tmp_path, steps=steps, optim=OptimConfig(learning_rate=0.1, weight_decay=0.0))
        state = run.train(toys.Regression(), Rows().load(batch=8), name=name, rollout=rollout)
        return np.asarray(state.params["params"]["w"])

    still = weights("two", 2, blank)
    np.testing.assert_array_equal(still, weights("six", 6, blank))
    assert (still != weights("plain", 2, None)).all()


def test_the_closing_hint_shows_a_word_only_where_a_task_needs_one():
    @dataclasses.dataclass
    class Needs:
        prompt: str
        n: int = 1
        positional = ("prompt",)

    @dataclasses.dataclass
    class Draws:
        prompts: tuple[str, ...] = ()
        positional = ("prompts",)

    assert needed_words(Needs) == ['"..."']
    assert needed_words(Draws) == needed_words(object) == []


def test_a_ramp_of_the_configuration_grows_the_batch_and_keeps_the_schedules_length(tmp_path, toys):
    run = config(tmp_path, steps=None, epochs=2, batch_ramp=Ramp(4, 4, 8), log_every=1, checkpoint_every=3)
    seen = []

    def note(params, batch, step):
        seen.append(len(batch["y"]))
        return batch

    state = train(run, toys, rollout=note)
    assert seen == [4, 4] + [8] * 9 and int(state.updates) == 11  # 80 records: 2 of 4, 9 of 8
    assert RunConfig.load(str(tmp_path / "a")).trainer.batch_ramp == Ramp(4, 4, 8)


def test_another_ramp_is_refused_where_a_run_goes_on(tmp_path, toys):
    train(config(tmp_path, batch_ramp=Ramp(4, 4, 8)), toys)
    with pytest.raises(ValueError, match=r"trainer\.batch_ramp\.records was 8, now 16"):
        train(config(tmp_path, steps=8, batch_ramp=Ramp(4, 4, 16)), toys)


def test_the_loaders_concurrency_may_change_on_resume(tmp_path, toys):
    train(config(tmp_path), toys)
    run = config(tmp_path, steps=8)
    run = dataclasses.replace(run, data=Rows(loading=Loading(workers=0, threads=2)))
    assert int(train(run, toys).step) == 8


def test_a_ramp_of_the_dataset_alone_is_refused(tmp_path, toys):
    run = config(tmp_path)
    with pytest.raises(ValueError, match=r"opened with ramp=.* and trainer\.batch_ramp=None"):
        run.train(toys.Regression(), run.data.load(batch=8).ramped(Ramp(4, 4, 8)), name="a")
