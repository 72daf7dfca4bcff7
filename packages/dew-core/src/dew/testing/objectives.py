"""What every objective keeps: pure initialisation, finite gradients, additive statistics, exact resume."""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.objectives.base import Batch, EMASpec, Mean, Objective, Step, Variables, scalar_loss
from dew.testing.datasets import in_memory
from dew.training.checkpoints import Checkpoints
from dew.training.state import TrainState
from dew.training.trainer import Trainer


class ObjectiveContract(ABC):
    """Implement `objective` and `batch`; the contract of `dew.objectives.base.Objective` is then tested.

    The objective should be tiny: each test compiles it once or twice.
    """

    stochastic = False
    """Whether the loss draws random numbers, so that two halves of a batch do not see what the whole saw."""

    tolerance = 1e-5
    """Relative difference, as a norm over the tree, that float32 sums in another order may have."""

    @abstractmethod
    def objective(self) -> Objective[Any, Any]:
        """A fresh objective."""

    @abstractmethod
    def batch(self, rows: int) -> Batch:
        """The first `rows` rows of some fixed data, as host arrays with a leading row axis."""

    def variables(self) -> Variables:
        """The variables every test starts from."""
        return self.objective().initializer(jax.random.key(0))

    def trainer(self, objective: Objective[Any, Any], **options: Any) -> Trainer:
        """A Trainer over plain gradient descent."""
        return Trainer(objective, optax.sgd(0.1), key=jax.random.key(1), **options)

    def fit(
        self, steps: int, *, rows: int = 2, objective: Objective[Any, Any] | None = None, **options: Any
    ) -> TrainState:
        """`steps` attempts over batches of `rows` of this data."""
        cadence = options.pop("checkpoint_every", None)
        trainer = self.trainer(objective or self.objective(), **options)
        return trainer.fit(in_memory(self.batch(4), batch=rows), steps=steps, checkpoint_every=cadence)

    def test_init_is_pure_in_its_key(self) -> None:
        objective = self.objective()
        first, again = (objective.initializer(jax.random.key(3)) for _ in range(2))
        assert_equal(first, again)
        assert "params" in first, "the variables need a params collection for the optimizer to move"

    def test_init_can_be_traced(self) -> None:
        objective = self.objective()
        shapes = jax.eval_shape(objective.initializer, jax.random.key(0))
        assert jax.tree.structure(shapes) == jax.tree.structure(self.variables())

    def test_loss_and_its_gradients_are_finite(self) -> None:
        objective, variables = self.objective(), self.variables()

        def value(params: Any) -> jax.Array:
            return scalar_loss(objective, {**variables, "params": params}, self.batch(2), clock(objective))[0]

        loss, gradients = jax.jit(jax.value_and_grad(value))(variables["params"])
        assert jnp.isfinite(loss)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
            assert jnp.isfinite(leaf).all(), f"the gradient of {jax.tree_util.keystr(path)} is not finite"

    def test_loss_leaves_the_parameters_alone(self) -> None:
        objective = self.objective()
        _, aux = objective.loss(self.variables(), self.batch(2), clock(objective))
        assert "params" not in (aux.variables or {}), "aux.variables replaces collections other than params"

    def test_statistics_add_over_the_rows(self) -> None:
        if self.stochastic:
            return
        objective, variables, whole = self.objective(), self.variables(), self.batch(4)
        halves = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 2], whole) for at in (0, 2)]
        stats, low, high = (
            objective.loss(variables, batch, clock(objective))[0] for batch in (whole, *halves)
        )
        unit = isinstance(stats, jax.Array | float)
        added = jax.tree.map(lambda one, two: (one + two) / 2 if unit else one + two, low, high)
        assert_close(stats, added, self.tolerance)

    def test_mass_is_free_of_the_parameters(self) -> None:
        objective, variables = self.objective(), self.variables()

        def mass(params: Any) -> jax.Array:
            stats, _ = objective.loss({**variables, "params": params}, self.batch(2), clock(objective))
            return jnp.asarray(stats.mass if isinstance(stats, Mean) else 1.0, jnp.float32)

        gradients = jax.grad(mass)(variables["params"])
        assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))

    def test_longer_run_traces_the_loss_no_more_often(self) -> None:
        counts: list[int] = []
        for steps in (1, 4):
            traced: list[None] = []
            self.fit(steps, objective=counting(self.objective(), traced))
            counts.append(len(traced))
        assert counts[0] == counts[1] > 0, (
            f"the loss was traced {counts[0]} times in one step, {counts[1]} in four"
        )

    def test_stopped_and_resumed_run_equals_the_uninterrupted_one(self) -> None:
        """Stopped inside an accumulation window."""
        whole = self.fit(6, accumulation=2)
        with tempfile.TemporaryDirectory() as directory:
            for steps in (3, 6):
                checkpoints = Checkpoints(directory, keep=1)
                resumed = self.fit(steps, accumulation=2, checkpoints=checkpoints, checkpoint_every=3)
        assert_equal(whole.params, resumed.params)
        assert_equal(whole.opt_state, resumed.opt_state)

    def test_accumulated_window_equals_the_whole_batch(self) -> None:
        if self.stochastic:
            return
        whole = self.fit(1, rows=4)
        pieces = self.fit(2, rows=2, accumulation=2)
        assert int(pieces.updates) == int(whole.updates) == 1
        assert_close(moved(self, whole), moved(self, pieces), self.tolerance)

    def test_average_follows_the_parameters(self) -> None:
        objective = with_average(self.objective(), EMASpec(lambda updates: jnp.asarray(0.75)))
        state = self.fit(1, objective=objective)
        start = self.trainer(objective).initial_state().params
        expected = jax.tree.map(
            lambda old, new: 0.75 * old + 0.25 * new, start["params"], state.params["params"]
        )
        assert_close(expected, state.averaged["params"], self.tolerance)


def clock(objective: Objective[Any, Any]) -> Step:
    """The first step; where the objective keeps an average, variables of another draw stand for it."""
    average = None if objective.ema is None else objective.initializer(jax.random.key(4))
    return Step(step=jnp.asarray(0), key=jax.random.key(2), ema=average)


def moved(contract: ObjectiveContract, state: TrainState) -> Any:
    """How far a run moved the parameters from their start."""
    start = contract.trainer(contract.objective()).initial_state().params
    return jax.tree.map(jnp.subtract, state.params["params"], start["params"])


def counting(objective: Objective[Any, Any], traced: list[None]) -> Objective[Any, Any]:
    """`objective` with every Python call of its loss noted in `traced`."""
    kind = type(objective)

    def loss(self: Any, *arguments: Any) -> Any:
        traced.append(None)
        return kind.loss(self, *arguments)

    return reclassed(objective, {"loss": loss})


def with_average(objective: Objective[Any, Any], spec: EMASpec) -> Objective[Any, Any]:
    """`objective` with another average."""
    return reclassed(objective, {"ema": property(lambda self: spec)})


def reclassed(objective: Objective[Any, Any], members: dict[str, Any]) -> Objective[Any, Any]:
    """A copy of `objective` whose class has `members` on top; works for frozen ones too."""
    twin = copy.copy(objective)
    object.__setattr__(twin, "__class__", type(type(objective).__name__, (type(objective),), members))
    return twin


def assert_equal(first: Any, second: Any) -> None:
    """Fail unless two trees are equal bit for bit."""
    jax.tree.map(lambda one, two: np.testing.assert_array_equal(plain(one), plain(two)), first, second)


def plain(leaf: Any) -> np.ndarray:
    """A leaf as numbers; a typed key as its data."""
    typed = jax.dtypes.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)


def assert_close(first: Any, second: Any, tolerance: float) -> None:
    """Fail unless the norm of the difference is within `tolerance` of the first tree's norm."""
    scale = float(optax.tree.norm(first))
    gap = float(optax.tree.norm(jax.tree.map(jnp.subtract, first, second)))
    assert gap <= tolerance * scale, f"the difference is {gap / scale:.2e} of the norm, over {tolerance:.0e}"
