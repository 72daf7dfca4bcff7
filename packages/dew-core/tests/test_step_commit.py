"""In which order a step becomes a checkpoint and older ones go: at every moment one whole step is there."""

import jax
import optax
import pytest

from dew.training import Checkpoints, Trainer, step_commit, step_store
from dew.training.checkpoints import CheckpointError
from dew.training.step_folders import is_complete


@pytest.fixture
def save(toys, tmp_path):
    """Save steps with keep=1 and wait for each."""
    state = Trainer(toys.Regression(), optax.adam(0.1), key=jax.random.key(0)).initial_state()

    def run(*steps):
        checkpoints = Checkpoints(tmp_path, keep=1)
        for step in steps:
            checkpoints.save(step, state, None)
            checkpoints.wait()
        return checkpoints

    return run


def test_data_then_list_then_marker_then_name_are_durable_before_an_older_step_goes(
    save, tmp_path, monkeypatch
):
    save(3)
    events = []
    sync = step_commit.sync

    def synced(path):
        events.append(path.relative_to(tmp_path).as_posix().replace(tmp_name(path), "TMP"))
        sync(path)

    def tmp_name(path):
        return next((part for part in path.parts if "orbax-checkpoint-tmp" in part), "\0")

    def deleted(folder):
        assert is_complete(tmp_path / "5") and is_complete(tmp_path / "3")
        events.append(f"delete {folder.name}")

    monkeypatch.setattr(step_commit, "sync", synced)
    monkeypatch.setattr(step_store, "delete", deleted)
    save(5)
    data = events[: events.index("TMP/files.json")]
    assert any(name.startswith("TMP/state/") for name in data) and "TMP" in data
    assert events[len(data) :] == [
        "TMP/files.json",
        "5/files.json",
        "5/commit_success.txt",
        "5/_CHECKPOINT_METADATA",
        "5",
        ".",
        "delete 3",
    ]


@pytest.mark.parametrize("broken", ["seal", "settle"])
def test_a_step_that_cannot_be_made_durable_costs_no_older_one(save, tmp_path, monkeypatch, caplog, broken):
    save(3)

    def fail(folder):
        raise OSError("no space left")

    monkeypatch.setattr(step_commit, broken, fail)
    with pytest.raises(CheckpointError, match=r"checkpoint 5 could not be written .*no space left"):
        save(5)
    assert 3 in Checkpoints(tmp_path).steps()
    assert not [record for record in caplog.records if record.exc_info], "the error says it all"


def test_a_deletion_cut_short_leaves_no_step_and_is_finished_later(save, tmp_path, monkeypatch):
    save(3)

    def die(path, **options):
        if not options:
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(step_commit.shutil, "rmtree", die)
        with pytest.raises(CheckpointError, match="checkpoint 5"):
            save(5)
    assert Checkpoints(tmp_path).steps() == (5,) and (tmp_path / "deleted-3").is_dir()
    save(7)
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_a_write_whose_folder_is_gone_afterwards_is_a_failure(save, tmp_path, monkeypatch):
    monkeypatch.setattr(step_store, "is_complete", lambda folder: False)
    with pytest.raises(CheckpointError, match=r"checkpoint 3 .*not there after the write"):
        save(3)
