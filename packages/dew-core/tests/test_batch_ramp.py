"""A batch that grows over the first records of a run: its law, its positions and the run around it."""

from types import SimpleNamespace

import grain
import jax
import numpy as np
import optax
import pytest

from dew.config import TrainerConfig
from dew.data import DataPartition, Dataset, Loading, Ramp
from dew.data.stages import Stages
from dew.testing import in_memory
from dew.training import Checkpoints, MeshSpec, Trainer
from dew.training.distributed import check_rows

RAMP, BATCH = Ramp(start=4, increment=4, records=24), 12
AFTER = [4, 8, 12, 20, 28, 40, 52, 64]
"""Records after each step: three steps of 4, two of 8, then 12s, a stage being 24 / 2 records long."""


INLINE = Loading(workers=0, threads=0)


def ranged(*, loading=INLINE, records=20):
    return Dataset.from_grain(grain.MapDataset.range(records), batch=BATCH, loading=loading).ramped(RAMP)


def taken(iterator, count):
    return [np.asarray(next(iterator)).tolist() for _ in range(count)]


def test_records_after_each_step_are_those_of_the_stages():
    stages = Stages(BATCH, RAMP)
    assert [sum(stages.step(index)) for index in range(8)] == AFTER
    assert [stages.step_at(record) for record in (0, *AFTER)] == list(range(9))


@pytest.mark.parametrize(
    ("ramp", "batch"),
    [(RAMP, BATCH), (Ramp(2, 3, 100), 11), (Ramp(1, 1, 7), 9), (Ramp(8, 8, 1), 32), (Ramp(3, 1, 10), 4)],
)
def test_every_step_has_the_size_that_the_law_gives_its_first_record(ramp, batch):
    stages, record = Stages(batch, ramp), 0
    count = (batch - ramp.start) // ramp.increment
    for index in range(200):
        grown = ramp.start + ramp.increment * (record * count // ramp.records)
        size = grown if record < ramp.records else batch
        assert stages.step(index) == (record, size)
        record += size


def test_whole_steps_within_records_are_counted():
    stages = Stages(BATCH, RAMP)
    for records in range(60):
        assert stages.steps_within(records) == sum(after <= records for after in AFTER)


def test_batches_grow_over_one_order_and_over_the_end_of_an_epoch():
    order = np.concatenate(taken(ranged().train(DataPartition()), 6)) % 20
    assert order.tolist() == [record % 20 for record in range(40)]
    assert [len(batch) for batch in taken(ranged().train(DataPartition()), 8)] == np.diff(
        [0, *AFTER]
    ).tolist()


@pytest.mark.parametrize("loading", [Loading(workers=0, threads=0), Loading(workers=0, threads=3)])
@pytest.mark.parametrize("cut", range(8))
def test_a_position_inside_any_stage_continues_with_the_next_batch_on_any_share(loading, cut):
    whole, saver = ranged().train(DataPartition()), ranged(loading=loading).train(DataPartition())
    taken(whole, cut), taken(saver, cut)
    expected = taken(whole, 3)
    shares = [ranged(loading=loading).train(DataPartition(index, 2)) for index in range(2)]
    for share in shares:
        share.set_state(saver.get_state())
    halves = [taken(share, 3) for share in shares]
    assert [low + high for low, high in zip(*halves, strict=True)] == expected


def test_a_position_of_another_ramp_is_refused():
    position = ranged().train(DataPartition()).get_state()
    other = in_memory({"x": np.arange(20)}, batch=BATCH).train(DataPartition())
    with pytest.raises(ValueError, match=r"ramp was \[4, 4, 24\], is unset"):
        other.set_state(position)


def test_a_position_between_steps_is_refused():
    with pytest.raises(ValueError, match="no step begins after 6 records: the one there reads 4 from 4 on"):
        Stages(BATCH, RAMP).step_at(6)


@pytest.mark.parametrize(
    ("ramp", "message"),
    [(Ramp(12, 4, 9), "start=12 must be below"), (Ramp(4, 3, 9), "increment=3 must divide 12 - 4 = 8")],
)
def test_a_ramp_that_does_not_end_at_the_batch_is_refused(ramp, message):
    with pytest.raises(ValueError, match=message):
        TrainerConfig(batch_size=12, batch_ramp=ramp)
    with pytest.raises(ValueError, match=message):
        ranged().ramped(ramp)


def test_batches_made_elsewhere_cannot_grow():
    data = Dataset.from_grain(lambda share: grain.MapDataset.range(8).to_iter_dataset().batch(4), batch=12)
    with pytest.raises(ValueError, match="comes in batches that are made elsewhere"):
        data.ramped(RAMP)


def test_a_stage_that_the_mesh_cannot_split_is_refused_by_its_size():
    wide = SimpleNamespace(shape={"data": 4, "fsdp": 2, "expert": 1})

    with pytest.raises(
        ValueError, match=r"a batch of 4 rows, a stage of batch_ramp=.* over the 8 row shards"
    ):
        check_rows(ranged(), wide, MeshSpec())
    with pytest.raises(ValueError, match=r"8 row shards .* in 4 pipeline microbatches each; .* 32"):
        check_rows(ranged(), wide, MeshSpec(stage=2, microbatches=4))
    with pytest.raises(ValueError, match="a batch of 4 rows cannot be cut into 8 equal shares"):
        ranged().train(DataPartition(0, 8))


def test_epochs_are_the_whole_steps_within_their_records():
    """Two passes of 24 whole records: 48 hold six steps, the sixth of which ends at 40."""
    data = in_memory({"x": np.arange(26)}, batch=BATCH).ramped(RAMP)
    assert TrainerConfig(epochs=2, batch_size=12, batch_ramp=RAMP).total_steps(data) == 6
    assert data.steps_per_epoch == 2


def rows(count=20):
    x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": np.ones(count, np.float32), "id": np.arange(count)}


@pytest.fixture
def fit(toys):
    """Train under the ramp; the state, the ids of every batch and how often the loss was traced."""

    def run(steps, directory=None, **options):
        traced, ids = [], []

        class Traced(toys.Regression):
            def loss(self, params, batch, step):
                traced.append(len(batch["y"]))
                return super().loss(params, batch, step)

        def note(params, batch, step):
            ids.append(batch["id"].tolist())
            return batch

        trainer = Trainer(
            Traced(noise=0.1),
            optax.adamw(0.1),
            key=jax.random.key(7),
            checkpoints=None if directory is None else Checkpoints(directory, keep=1),
            rollout=note,
            **options,
        )
        data = in_memory(rows(), batch=BATCH, seed=3).ramped(RAMP)
        return trainer.fit(data, steps=steps, checkpoint_every=directory and 100), ids, traced

    return run


def test_the_step_compiles_once_for_each_stage(fit):
    _, ids, traced = fit(8)
    assert traced == [4, 8, 12]
    assert [len(batch) for batch in ids] == [4, 4, 4, 8, 8, 12, 12, 12]


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_run_cut_inside_any_stage_resumes_bit_for_bit(fit, tmp_path, cut):
    whole, ids, _ = fit(8)
    _, before, _ = fit(cut, tmp_path)
    state, after, _ = fit(8, tmp_path)
    assert before + after == ids
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(whole.params), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_accumulation_beside_a_ramp_is_refused(fit):
    with pytest.raises(ValueError, match=r"accumulation=2 with data whose batch grows"):
        fit(2, accumulation=2)


def test_a_mesh_is_checked_before_any_work(toys, monkeypatch):
    trainer = Trainer(toys.Regression(), optax.sgd(0.1), key=jax.random.key(0), mesh=MeshSpec())
    monkeypatch.setattr("dew.training.distributed.row_shards", lambda mesh: 8)
    with pytest.raises(ValueError, match="a batch of 4 rows, a stage"):
        trainer.fit(in_memory(rows(), batch=BATCH).ramped(RAMP), steps=1)
