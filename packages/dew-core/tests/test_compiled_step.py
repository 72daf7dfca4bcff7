"""The compiled step: one executable for a run and its resume, no array baked in, nothing donated."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.objectives.base import Aux, EMASpec, Objective
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer

KEY = jax.random.key(0)


def rows(count=12):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": np.ones(count, np.float32)}


@pytest.fixture
def compilations(monkeypatch):
    """The compiled-cache size of every step that fit compiles."""
    made = []
    original = Trainer.compile

    def remember(self, state, batch):
        made.append(original(self, state, batch))
        return made[-1]

    monkeypatch.setattr(Trainer, "compile", remember)
    return made


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("log_every", [1, 100])
def test_run_and_its_resume_compile_the_step_once_each(toys, tmp_path, compilations, accumulation, log_every):
    for steps in (3, 6):
        trainer = Trainer(
            toys.Regression(ema=EMASpec(lambda n: 0.9)),
            optax.adam(0.1),
            key=KEY,
            accumulation=accumulation,
            checkpoints=Checkpoints(tmp_path),
        )
        trainer.fit(in_memory(rows(), batch=4), steps=steps, log_every=log_every, checkpoint_every=1)
    assert [step.jitted._cache_size() for step in compilations] == [1, 1]


class Held(Objective):
    """Starts from a table of 4 MiB that it holds."""

    def __init__(self):
        self.table = np.ones((1024, 1024), np.float32)

    def held_variables(self):
        return {"params": {"table": jnp.asarray(self.table)}}

    def init(self, key, variables=None):
        return {"params": dict((self.held_variables() if variables is None else variables)["params"])}

    def loss(self, params, batch, step):
        return jnp.sum(params["params"]["table"][0] * batch["x"][0, 0]), Aux()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_held_arrays_are_arguments_of_the_step_and_of_the_initialisation(accumulation):
    trainer = Trainer(Held(), optax.sgd(1.0), key=KEY, accumulation=accumulation)
    state, _shardings, _ = trainer.place()
    batch = {"x": np.ones((2, 3), np.float32)}
    step = trainer.compile(state, batch).lower(state, batch).as_text()
    create = jax.jit(trainer._create_unboxed).lower(trainer.objective.initializer, KEY).as_text()
    for text in (step, create):
        assert len(text) < 2**20, "a constant is printed in full, two digits a byte"


def test_step_donates_neither_state_nor_batch(toys):
    trainer = Trainer(toys.Regression(), optax.adam(0.1), key=KEY)
    state, _, _ = trainer.place()
    batch = jax.device_put(rows(4))
    compiled = trainer.compile(state, batch)
    first = compiled(state, batch)
    again = compiled(state, batch)
    np.testing.assert_array_equal(first.state.params["params"]["w"], again.state.params["params"]["w"])


def test_placed_and_unplaced_initial_states_agree(toys):
    trainer = Trainer(toys.Regression(ema=EMASpec(lambda n: 0.9)), optax.adam(0.1), key=KEY)
    placed, shardings, position = trainer.place()
    unplaced = trainer.initial_state()
    assert jax.tree.structure(placed) == jax.tree.structure(unplaced) and position is None
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), placed.params, unplaced.params)
    same = jax.tree.map(lambda leaf, to: leaf.sharding.is_equivalent_to(to, leaf.ndim), placed, shardings)
    assert all(jax.tree.leaves(same))
