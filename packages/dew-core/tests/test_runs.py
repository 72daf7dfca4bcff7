"""A run read back from its directory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.objectives.base import EMASpec
from dew.training import Checkpoints, MeshSpec, Trainer, build_mesh
from dew.training.runs import Run, load_run


@pytest.fixture
def make_run(toys, tmp_path):
    """A run directory whose configuration builds a toy; `averaged` says whether it keeps an average."""

    def make(averaged=True, width=3):
        objective = toys.Regression(ema=EMASpec(lambda n: 0.5) if averaged else None)
        data = {"x": np.ones((2, 3), np.float32), "y": np.ones(2, np.float32), "m": np.ones(2, np.float32)}
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        trainer = Trainer(objective, optax.adam(0.1), key=jax.random.key(0), checkpoints=checkpoints)
        from dew.testing import in_memory

        state = trainer.fit(in_memory(data, batch=2), steps=2)

        class Config:
            lora = None

            class trainer:
                keep = 2

            def rebuilt(self):
                return self

            def build(self):
                return toys.Regression(width, ema=objective.ema)

        return Run(directory=str(tmp_path), config=Config(), record={}), state

    return make


def test_restored_variables_are_the_averaged_ones(make_run):
    run, state = make_run()
    np.testing.assert_array_equal(run.restore()["params"]["w"], state.averaged["params"]["w"])
    np.testing.assert_array_equal(run.restore(ema=False)["params"]["w"], state.params["params"]["w"])


def test_run_without_an_average_says_so(make_run):
    run, state = make_run(averaged=False)
    assert not run.has_average()
    with pytest.raises(ValueError, match="restore the live weights with ema=False"):
        run.restore()
    np.testing.assert_array_equal(run.restore(ema=False)["params"]["w"], state.params["params"]["w"])


def test_restored_variables_lie_on_the_mesh_in_the_asked_dtype(make_run):
    run, _ = make_run()
    mesh = build_mesh(MeshSpec())
    leaf = run.restore(mesh=mesh, dtype="bfloat16")["params"]["w"]
    assert leaf.dtype == jnp.bfloat16 and leaf.sharding.mesh == mesh


def test_other_model_is_refused_with_the_leaf(make_run):
    run, _ = make_run(width=4)
    with pytest.raises(ValueError, match=r"params/w: float32\[3\] in the checkpoint, float32\[4\] here"):
        run.restore()


def test_folder_without_a_record_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run\.json"):
        load_run(tmp_path)


def test_record_without_an_objective_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="names no objective"):
        load_run(tmp_path)
