"""Checkpoints: what is complete, what is kept, what is refused, and failures that cannot be missed."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.cli.errors import report
from dew.data.dataset import DataPartition, Dataset
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.checkpoints import CheckpointError, DamagedCheckpoint
from dew.training.positions import position_for

WHOLE = DataPartition()


@pytest.fixture
def state(toys):
    return Trainer(toys.Regression(), optax.adam(0.1), key=jax.random.key(0)).initial_state()


def stored(tmp_path, state, steps=(5,), **options):
    checkpoints = Checkpoints(tmp_path, **options)
    for step in steps:
        checkpoints.save(step, state, f"at {step}".encode(), share=WHOLE)
    checkpoints.wait()
    return checkpoints


def test_saved_state_and_position_come_back(tmp_path, state):
    stored(tmp_path, state)
    restored, position = Checkpoints(tmp_path).restore(state, share=WHOLE)
    assert position == b"at 5" and jax.tree.structure(restored) == jax.tree.structure(state)
    np.testing.assert_array_equal(restored.params["params"]["w"], state.params["params"]["w"])
    assert Checkpoints(tmp_path).restore(state)[1] is None


def test_restore_without_a_template_gives_plain_fields(tmp_path, state):
    stored(tmp_path, state)
    fields, _ = Checkpoints(tmp_path).restore()
    np.testing.assert_array_equal(fields["params"]["params"]["w"], state.params["params"]["w"])
    assert "ema" not in fields


def test_restore_of_some_fields_leaves_the_others_unread(tmp_path, state):
    stored(tmp_path, state)
    fields, _ = Checkpoints(tmp_path).restore({"params": state.params})
    assert set(fields) == {"params"}


def test_latest_steps_are_kept(tmp_path, state):
    checkpoints = stored(tmp_path, state, (1, 2, 3, 4), keep=2)
    assert checkpoints.steps() == (3, 4) and checkpoints.latest == 4


@pytest.mark.parametrize(("higher", "best"), [(False, 2), (True, 1)])
def test_best_step_is_kept_besides_the_latest(tmp_path, state, higher, best):
    values = {1: 9.0, 2: 1.0, 3: 5.0, 4: float("nan"), 5: 6.0}
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, value in values.items():
        if step == 3:  # what an earlier process scored counts as well
            checkpoints.wait()
            checkpoints = Checkpoints(tmp_path, keep=1)
        checkpoints.save(step, state, None, {"score": value, "other": -step}, higher_is_better=higher)
    checkpoints.wait()
    assert checkpoints.steps() == (best, 5)
    assert checkpoints.record(best)["metrics"]["score"] == values[best]


def test_incomplete_folders_are_named_and_passed_over(tmp_path, state):
    stored(tmp_path, state)
    (tmp_path / "11").mkdir()
    checkpoints = Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="11 is no complete checkpoint"):
        assert checkpoints.latest == 5
    with pytest.warns(UserWarning, match="now lies at"):
        checkpoints.save(6, state, None)
    checkpoints.wait()
    assert checkpoints.steps() == (5, 6) and (tmp_path / "incomplete-11").is_dir()


def test_reading_changes_nothing_and_sees_later_steps(tmp_path, state):
    writer = stored(tmp_path, state)
    pending = tmp_path / "6.orbax-checkpoint-tmp"
    pending.mkdir()
    reader = Checkpoints(tmp_path)
    reader.restore(state)
    assert pending.is_dir(), "another process may be writing it"
    pending.rmdir()
    writer.save(7, state, b"at 7", share=WHOLE)
    writer.wait()
    assert reader.latest == 7 and reader.restore(state, share=WHOLE)[1] == b"at 7"
    with pytest.raises(FileNotFoundError):
        Checkpoints(tmp_path / "absent").restore(state)
    assert not (tmp_path / "absent").exists()


def test_absent_step_is_named_with_those_there_are(tmp_path, state):
    stored(tmp_path, state)
    with pytest.raises(FileNotFoundError, match=r"no complete checkpoint 7 \(complete: 5\); name one"):
        Checkpoints(tmp_path).restore(state, 7)
    with pytest.raises(FileNotFoundError, match="complete: none"):
        Checkpoints(tmp_path / "empty").restore(state)


def test_step_that_cannot_follow_is_refused(tmp_path, state):
    checkpoints = stored(tmp_path, state, (5,))
    for step in (5, 3):
        with pytest.raises(CheckpointError, match=rf"checkpoint {step} .*5"):
            checkpoints.save(step, state, None)


def test_other_dtype_and_shape_are_refused_not_cast(tmp_path, state):
    stored(tmp_path, state)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), state.params)
    with pytest.raises(ValueError, match=r"params/w: float32\[3\] in the checkpoint, bfloat16\[3\] here"):
        Checkpoints(tmp_path).restore({"params": half})
    wide = {"params": {"w": jnp.zeros(4)}}
    with pytest.raises(ValueError, match=r"float32\[3\] in the checkpoint, float32\[4\] here"):
        Checkpoints(tmp_path).restore({"params": wide})


def test_first_five_differences_are_listed(tmp_path, state):
    stored(tmp_path, state)
    many = {"params": {f"w{n}": jnp.zeros(3) for n in range(6)}}
    with pytest.raises(ValueError, match=r"in 7 leaves:(\n.*){5}\n  and 2 more"):
        Checkpoints(tmp_path).restore({"params": many})


def test_failed_write_stops_the_run_by_the_next_save_and_names_its_step(toys, tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    original = ocp.CheckpointManager.wait_until_finished

    def fail(self):
        original(self)
        if self.latest_step() == 5:
            raise OSError("disk full")

    monkeypatch.setattr(ocp.CheckpointManager, "wait_until_finished", fail)
    rows = {"x": np.ones((4, 3), np.float32), "y": np.ones(4, np.float32), "m": np.ones(4, np.float32)}
    trainer = Trainer(
        toys.Regression(), optax.sgd(0.1), key=jax.random.key(0), checkpoints=Checkpoints(tmp_path)
    )
    with pytest.raises(CheckpointError, match=r"checkpoint 5 .*disk full") as failure:
        trainer.fit(in_memory(rows, batch=2), steps=40, checkpoint_every=5)
    assert isinstance(failure.value.__cause__, OSError)


def test_directory_that_cannot_be_written_is_named(toys, tmp_path):
    (tmp_path / "file").write_text("")
    options = {"key": jax.random.key(0), "checkpoints": Checkpoints(tmp_path / "file" / "checkpoints")}
    untouched = Dataset(train=lambda share: pytest.fail("read"), val=None, records=None, batch=2)
    with pytest.raises(CheckpointError, match=r"file/checkpoints: .*can be written"):
        Trainer(toys.Regression(), optax.sgd(0.1), **options).fit(untouched, steps=1)


def test_directory_lost_on_the_way_stops_the_run(toys, tmp_path):
    class Remover(toys.Recorder):
        def log(self, values, *, step):
            if step == 4:
                shutil.rmtree(tmp_path / "checkpoints")
                (tmp_path / "checkpoints").write_text("")

    rows = {"x": np.ones((4, 3), np.float32), "y": np.ones(4, np.float32), "m": np.ones(4, np.float32)}
    options = {"tracker": Remover(), "checkpoints": Checkpoints(tmp_path / "checkpoints")}
    trainer = Trainer(toys.Regression(), optax.sgd(0.1), key=jax.random.key(0), **options)
    with pytest.raises(CheckpointError, match="checkpoint 5 could not be written"):
        trainer.fit(in_memory(rows, batch=2), steps=40, checkpoint_every=5, log_every=1)


def test_position_needs_its_share(tmp_path, state):
    with pytest.raises(ValueError, match="together"):
        Checkpoints(tmp_path).save(1, state, b"position")


def test_common_position_serves_any_share_and_separate_ones_their_own():
    common = [{"index": n, "count": 2, "state": "YQ=="} for n in range(2)]
    assert position_for(common, DataPartition(index=3, count=4), "here") == b"a"
    separate = [{"index": 0, "count": 2, "state": "YQ=="}, {"index": 1, "count": 2, "state": "Yg=="}]
    assert position_for(separate, DataPartition(index=1, count=2), "here") == b"b"
    with pytest.raises(ValueError, match=r"2 shares.*share 0 of 4"):
        position_for(separate, DataPartition(index=0, count=4), "here")


def test_keeping_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


KILLED = """
import sys
import jax.numpy as jnp, jax, optax
from dew.training import Checkpoints
from dew.training.state import TrainState
zero = jnp.asarray(0)
checkpoints = Checkpoints(sys.argv[1], keep=1)
for step in range(checkpoints.latest or 0, 10**6):
    params = {"params": {"w": jnp.full((512, 512), float(step + 1))}}
    state = TrainState(zero, zero, zero, params, {}, None, jax.random.key(0), None, zero)
    checkpoints.save(step + 1, state, None)
    print(step + 1, flush=True)
"""


@pytest.mark.slow
def test_killed_writer_leaves_a_complete_step(tmp_path):
    draw = np.random.default_rng(0)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert writer.stdout is not None
        writer.stdout.readline(), writer.stdout.readline()
        time.sleep(float(draw.uniform(0, 0.5)))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        fields, _ = Checkpoints(tmp_path).restore()
        latest = Checkpoints(tmp_path).latest
        np.testing.assert_array_equal(fields["params"]["params"]["w"], np.full((512, 512), float(latest)))


def test_reading_says_nothing(state, tmp_path, caplog):
    writer = Checkpoints(tmp_path)
    writer.save(1, state, None)
    writer.wait()
    caplog.clear()
    Checkpoints(tmp_path).restore()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", ["deleted", "cut", "unlisted", "unmarked", "bare"])
def test_a_torn_step_is_named_and_the_one_before_it_restored(tmp_path, state, damage):
    stored(tmp_path, state, steps=(3, 5))
    torn = tmp_path / "5"
    if damage == "cut":
        os.truncate(largest_file(torn / "state"), 10)
    elif damage == "bare":
        shutil.rmtree(torn)
        torn.mkdir()
    else:
        gone = {"unlisted": torn / "files.json", "unmarked": torn / "state" / "commit_success.txt"}
        gone.get(damage, largest_file(torn / "state")).unlink()
    with pytest.warns(UserWarning, match="/5 is no complete checkpoint; it is passed over"):
        assert Checkpoints(tmp_path).restore(state, share=WHOLE)[1] == b"at 3"
    with pytest.raises(FileNotFoundError, match=r"no complete checkpoint 5 \(complete: 3; incomplete: 5\)"):
        Checkpoints(tmp_path).restore(state, 5)


def test_a_damaged_checkpoint_names_itself_and_the_step_before_it(tmp_path, state):
    """Every file has its size, so that only reading tells."""
    stored(tmp_path, state, steps=(3, 5))
    metadata = tmp_path / "5" / "state" / "_METADATA"
    metadata.write_bytes(b"x" * metadata.stat().st_size)
    with pytest.raises(DamagedCheckpoint, match=r"/5 cannot be read.*to go on from step 3, move it away"):
        Checkpoints(tmp_path).restore(state, share=WHOLE)
    shutil.move(tmp_path / "5", tmp_path.parent / f"{tmp_path.name}-5")
    assert Checkpoints(tmp_path).restore(state, share=WHOLE)[1] == b"at 3"


def test_a_failed_write_is_one_message_and_a_failure_on_the_command_line(capsys):
    assert report(CheckpointError("checkpoint 10 could not be written")) == 1
    assert capsys.readouterr().err == "dew: checkpoint 10 could not be written\n"


def test_a_folder_that_takes_no_files_is_refused_when_it_is_opened(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(CheckpointError, match=r"cannot be kept in .*no space left.*choose a folder"):
        Checkpoints(tmp_path / "run").open()
