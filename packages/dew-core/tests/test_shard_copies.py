"""Emergency copies of several processes: each holds its part, and one counts once all of them hold theirs."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.testing.pool import run_pool
from dew.training import Checkpoints, board, pool
from dew.training.checkpoints import CheckpointError, DamagedCheckpoint
from dew.training.copy_agreement import agreed_copy
from dew.training.local_copies import LocalCopies
from dew.training.shard_store import ShardStore

JOBS = Path(__file__).with_name("pool_jobs.py")
DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int32", "bool")


@pytest.fixture
def texts(monkeypatch):
    """The board of a pool of two, of which this process is the first."""
    held = {}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(board, "post", lambda key, text: held.update({key: text}))
    monkeypatch.setattr(board, "read", lambda folder: {k: v for k, v in held.items() if k.startswith(folder)})
    return held


@pytest.fixture
def store(tmp_path, texts):
    made = ShardStore(str(tmp_path / "copies"), board_name="run")
    made.open(life="now")
    return made


def save(store, step, fields=None, record=None):
    store.save(step, {"step": jnp.asarray(step)} if fields is None else fields, record or {})
    store.wait()


def test_every_dtype_and_keys_come_back_bit_for_bit(store):
    held = {name: jnp.arange(-3, 3).reshape(2, 3).astype(name) for name in DTYPES}
    held |= {"key": jax.random.key(7), "scalar": jnp.asarray(2.5), "none": jnp.zeros((0, 4))}
    save(store, 3, {"params": held}, {"metrics": {"a": 1}})
    found = store.read(3, {"params": held})["params"]
    assert store.record(3) == {"metrics": {"a": 1}, "life": "now"}
    for name, leaf in held.items():
        one, other = (jax.random.key_data(each) if name == "key" else each for each in (leaf, found[name]))
        assert found[name].dtype == leaf.dtype and found[name].sharding == leaf.sharding
        assert one.shape == other.shape and np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
    shapes = {name: leaf.shape for name, leaf in store.stored(3)["params"].items()}
    assert shapes["bfloat16"] == (2, 3) and shapes["key"] == jax.random.key_data(held["key"]).shape


def test_a_leaf_is_read_into_the_memory_its_template_names(store):
    save(store, 2, {"opt_state": jnp.arange(4.0)})
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    template = {"opt_state": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=place)}
    found = store.read(2, template)["opt_state"]
    assert found.sharding.memory_kind == "pinned_host" and found.tolist() == [0, 1, 2, 3]


def test_a_copy_stays_until_every_process_holds_a_newer_one(store, texts):
    save(store, 2)
    save(store, 4)
    assert store.scan() == ((2, 4), ())
    texts["copies/run/1"] = json.dumps({"step": 4, "life": "before"})
    save(store, 6)
    assert store.scan() == ((2, 4, 6), ())
    texts["copies/run/1"] = json.dumps({"step": 4, "life": "now"})
    save(store, 8)
    assert store.scan() == ((4, 6, 8), ())


def test_copies_of_an_earlier_attempt_past_the_new_one_go(store, tmp_path):
    save(store, 8)
    again = ShardStore(store.directory, board_name="run")
    again.open(life="later")
    save(again, 6)
    assert again.scan() == ((6,), ()) and again.record(6)["life"] == "later"
    save(store, 6)
    assert store.record(6)["life"] == "now"


def test_half_written_and_half_deleted_copies_are_cleared_and_torn_ones_are_none(store):
    save(store, 2)
    save(store, 4)
    (Path(store.path(4)) / "pieces.bin").write_bytes(b"")
    for rest in ("6.partial", "deleted-1"):
        Path(f"{store.directory}/{rest}").mkdir()
    assert store.scan() == ((2,), (4,))
    store.open(life="later")
    assert sorted(path.name for path in Path(store.directory).iterdir()) == ["2", "4"]


def test_a_changed_byte_is_damage(store):
    save(store, 2)
    pieces = Path(store.path(2)) / "pieces.bin"
    pieces.write_bytes(bytes([pieces.read_bytes()[0] ^ 1]) + pieces.read_bytes()[1:])
    with pytest.raises(DamagedCheckpoint, match=r"2 cannot be read on process 0: the bytes of step are not"):
        store.read(2, {"step": jnp.asarray(0)})


def test_a_copy_that_fails_is_told_by_the_next_wait(store):
    shutil.rmtree(store.directory)
    store.save(2, {"step": jnp.asarray(2)}, {})
    with pytest.raises(CheckpointError, match=r"emergency copy 2 could not be written to .*copies: "):
        store.wait()


HELD = {"life": "now", "fault": None}


@pytest.mark.parametrize(
    ("first", "second", "step", "why"),
    [
        ({4: HELD}, {4: HELD}, 4, []),
        ({4: HELD, 6: HELD}, {4: HELD}, 4, ["that of step 6, since process 1 of 2 holds none"]),
        ({4: HELD}, {}, None, ["that of step 4, since process 1 of 2 holds none"]),
        (
            {6: {**HELD, "fault": "holds a torn one"}},
            {6: HELD},
            None,
            ["that of step 6, since process 0 of 2 holds a torn one"],
        ),
        (
            {6: HELD},
            {6: {**HELD, "life": "before"}},
            None,
            ["that of step 6, since process 1 of 2 made it in another attempt at the run"],
        ),
    ],
)
def test_the_newest_copy_that_all_hold_is_agreed_on(monkeypatch, first, second, step, why):
    monkeypatch.setattr(pool, "exchange", lambda what, text: [json.dumps(first), json.dumps(second)])
    assert agreed_copy(None, above=2, fault=lambda step: None) == (step, why)


def test_a_process_tells_of_its_whole_torn_and_unfitting_copies_past_the_checkpoint(store, monkeypatch):
    told = []
    for step in (2, 4, 6, 8):
        save(store, step)
    (Path(store.path(8)) / "files.json").unlink()
    monkeypatch.setattr(pool, "exchange", lambda what, text: told.append(json.loads(text)) or ["{}", "{}"])
    agreed_copy(store, above=2, fault=lambda step: "is odd" if step == 6 else None)
    faults = {step: each["fault"] for step, each in told[0].items()}
    assert faults == {"4": None, "6": "is odd", "8": "holds a torn one"}


def test_several_processes_keep_no_copies_in_a_bucket(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(pool, "exchange", lambda what, text: [text, text])
    with pytest.raises(ValueError, match=r"local_directory='gs://bucket' with 2 processes must be a folder"):
        LocalCopies("gs://bucket", str(tmp_path)).opened()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Folder of a killed run; the run left alone; and it resumed whole, torn and upon another mesh."""
    folder = tmp_path_factory.mktemp("killed")
    options = {"processes": 2, "devices": 4}
    limits = {"DEW_SILENCE_S": "4"}
    died = run_pool(
        f"{JOBS}:copy_and_die", **options, arguments={"folder": str(folder / "0")}, environment=limits
    )
    assert died[1].status == -9 and not died[0].late, died[0].output[-3000:]
    folders = [folder / name for name in ("whole", "torn", "moved")]
    for each in folders:
        shutil.copytree(folder / "0", each)
    (copy,) = folders[1].glob("local/*/process-1-of-2/8")
    (copy / "files.json").unlink()
    meshes = [{"fsdp": 2}, {"fsdp": 2}, {"fsdp": 4}]
    done = run_pool(
        f"{JOBS}:copies_go_on",
        **options,
        arguments={"folders": [str(each) for each in folders], "meshes": meshes},
    )
    assert done[0].status == 0 and not done[0].late, done[0].output[-3000:]
    return folder / "0", *done[0].value


@pytest.mark.slow
def test_a_killed_pool_goes_on_from_its_copies_bit_for_bit(resumed):
    _, whole, (copied, _, _) = resumed
    assert copied["begun"] == 8 and copied["said"] == [] and list(copied["losses"]) == ["9", "10", "11", "12"]
    assert copied["weights"] == whole["weights"]
    assert copied["losses"].items() <= whole["losses"].items()


@pytest.mark.slow
def test_the_torn_copy_of_one_process_makes_all_go_on_from_the_checkpoint(resumed):
    _, whole, (_, torn, _) = resumed
    assert torn["begun"] == 5 and torn["weights"] == whole["weights"]
    (said,) = torn["said"]
    assert "that of step 8, since process 1 of 2 holds a torn one" in said and "goes on from step 5" in said


@pytest.mark.slow
def test_copies_of_another_placement_are_passed_over(resumed):
    _, whole, (_, _, moved) = resumed
    (said,) = moved["said"]
    assert moved["begun"] == 5 and "process 0 of 2 holds another placement's part of ema/params/in" in said
    for one, other in zip(moved["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_another_number_of_processes_passes_the_copies_over(resumed):
    folder, _, _ = resumed
    checkpoints = Checkpoints(folder / "run", local_directory=folder / "local", local_every=2)
    with pytest.warns(UserWarning, match="step 8, since 2 processes made it, and this run has 1; .* step 5"):
        assert checkpoints.latest == 5
