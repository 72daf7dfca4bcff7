"""Accumulation: totals and masses add over the window, and one division makes the update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.objectives.base import Aux, EMASpec, Mean, Objective, scalar_loss, under
from dew.objectives.base import Step as Clock
from dew.training import Trainer

KEY = jax.random.key(3)


def run(objective, batches, *, optimizer=None, **options):
    """Attempt the batches one after another; the last result and every loss."""
    trainer = Trainer(objective, optimizer or optax.sgd(1.0), key=KEY, **options)
    state, _, _ = trainer.place()
    compiled = trainer.compile(state, batches[0])
    losses = []
    for batch in batches:
        result = compiled(state, batch)
        state = result.state
        losses.append(float(result.loss))
    return result, losses


def ragged(rows):
    """Twelve rows in pieces of `rows`, with unequal weights, two of them zero."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12, 3)).astype(np.float32)
    y = draw.normal(size=12).astype(np.float32)
    m = np.asarray([1, 5, 0, 2, 7, 1, 3, 0, 4, 1, 9, 2], np.float32)
    return [
        {"x": x[at : at + rows], "y": y[at : at + rows], "m": m[at : at + rows]} for at in range(0, 12, rows)
    ]


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("rows", [4, 1])
def test_window_of_pieces_has_the_gradient_and_loss_of_the_whole_batch(toys, rows):
    objective = toys.Regression()
    start = Trainer(objective, optax.sgd(1.0), key=KEY).initial_state().params["params"]["w"]
    x, y, m = (np.float64(ragged(12)[0][name]) for name in "xym")
    error = x @ np.float64(start) - y
    expected = 2 * (m * error) @ x / m.sum()
    pieces = ragged(rows)
    result, losses = run(objective, pieces, accumulation=len(pieces))
    gradient = start - result.state.params["params"]["w"]
    assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)
    assert losses[-1] == pytest.approx((m * error**2).sum() / m.sum(), rel=1e-6)
    assert (int(result.state.step), int(result.state.microstep), int(result.state.updates)) == (
        len(pieces),
    ) * 2 + (1,)


def test_masses_weigh_the_microbatches(toys):
    batches = [{"g": np.float32([s]), "m": np.float32([n])} for s, n in ((2, 1), (90, 9))]
    result, losses = run(toys.Linear(start=1.0), batches, accumulation=2)
    assert losses == [pytest.approx(2.0), pytest.approx(9.2)]
    assert float(result.state.params["params"]["w"]) == pytest.approx(1 - 9.2)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_window_without_support_changes_nothing_and_reports_no_data(toys, accumulation):
    masked = {"x": np.ones((2, 3), np.float32), "y": np.ones(2, np.float32), "m": np.zeros(2, np.float32)}
    objective = toys.Regression()
    trainer = Trainer(objective, optax.adamw(0.1, weight_decay=0.5), key=KEY, accumulation=accumulation)
    before = trainer.initial_state()
    result, losses = run(
        objective,
        [masked] * accumulation,
        optimizer=optax.adamw(0.1, weight_decay=0.5),
        accumulation=accumulation,
    )
    jax.tree.map(np.testing.assert_array_equal, before.params, result.state.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, result.state.opt_state)
    assert np.isnan(losses).all() and bool(result.loss_finite) and bool(result.accepted)
    assert (int(result.state.microstep), int(result.state.updates)) == (accumulation, 0)


def test_masked_microbatch_is_as_if_it_were_not_there(toys):
    rows = ragged(4)
    masked = {**rows[0], "m": np.zeros(4, np.float32)}
    with_masked, _ = run(toys.Regression(), [rows[0], masked, rows[1], rows[2]], accumulation=4)
    without, _ = run(toys.Regression(), rows, accumulation=3)
    np.testing.assert_array_equal(
        with_masked.state.params["params"]["w"], without.state.params["params"]["w"]
    )


def test_accumulator_is_wider_than_bfloat16(toys):
    batch = {"g": jnp.full((1,), 2.0**-10), "m": np.float32([1])}
    trainer = Trainer(toys.Linear(dtype=jnp.bfloat16), optax.sgd(1.0), key=KEY, accumulation=513)
    state, _, _ = trainer.place()
    compiled = trainer.compile(state, batch)
    for _ in range(512):
        state = compiled(state, batch).state
    assert float(state.accumulation["gradient"]["w"]) == 0.5


def test_finalized_gradient_has_the_parameter_dtype(toys):
    seen = []

    def update(gradient, state, params=None):
        seen.append(jax.tree.map(lambda leaf: leaf.dtype, gradient))
        return gradient, state

    batch = {"g": np.float32([1]), "m": np.float32([1])}
    optimizer = optax.GradientTransformation(lambda params: (), update)
    run(toys.Linear(dtype=jnp.bfloat16), [batch] * 2, optimizer=optimizer, accumulation=2)
    assert seen and all(dtypes == {"w": jnp.bfloat16} for dtypes in seen)


def test_composite_statistics_are_reduced_at_the_window_s_sum(toys):
    pieces = [{"x": piece["x"]} for piece in ragged(4)]
    result, losses = run(toys.Spread(), pieces, accumulation=3)
    start = Trainer(toys.Spread(), optax.sgd(1.0), key=KEY).initial_state().params["params"]["w"]

    def variance(w):  # each microbatch reads the counter as it stood: 0, 1, 2
        return jnp.var(jnp.concatenate([piece["x"] @ w * (1 + seen) for seen, piece in enumerate(pieces)]))

    gradient = start - result.state.params["params"]["w"]
    np.testing.assert_allclose(gradient, jax.grad(variance)(start), rtol=2e-6)
    assert losses[-1] == pytest.approx(float(variance(start)), rel=1e-6)
    assert int(result.state.params["counts"]["seen"]) == 3


def test_replayed_microbatch_gets_the_key_and_clock_it_was_first_run_with():
    class Noisy(Objective):
        def init(self, key, variables=None):
            return {"params": {"w": jnp.asarray(1.0)}}

        def loss(self, params, batch, step):
            draw = jax.random.normal(step.key) + 10.0 * step.step
            return {"sum": draw * params["params"]["w"]}, Aux({"draw": draw})

        def reduce_loss(self, stats):
            return stats["sum"], jnp.asarray(True)

    result, _ = run(Noisy(), [{"x": np.zeros(1, np.float32)}] * 3, accumulation=3)
    draws = [jax.random.normal(jax.random.fold_in(KEY, n)) + 10.0 * n for n in range(3)]
    assert float(result.state.params["params"]["w"]) == pytest.approx(1.0 - float(sum(draws)), rel=1e-6)


def test_replayed_microbatch_sees_the_collections_beside_the_average_as_they_were(toys):
    class Averaged(toys.Spread):
        ema = EMASpec(optax.constant_schedule(0.5), under("params"))

        def loss(self, params, batch, step):
            assert step.ema is not None
            beside = {"params": params["params"], "counts": step.ema["counts"]}
            return super().loss(beside, batch, step)

    pieces = [{"x": piece["x"]} for piece in ragged(4)]
    seen, _ = run(toys.Spread(), pieces, accumulation=3)
    averaged, _ = run(Averaged(), pieces, accumulation=3)
    moved = seen.state.params["params"]["w"]
    np.testing.assert_allclose(averaged.state.params["params"]["w"], moved, rtol=1e-6)


class Balanced(Objective):
    """Counts rows as effects and moves a bias by one for each commit that saw any."""

    def init(self, key, variables=None):
        return {"params": {"w": jnp.asarray(0.0)}, "router": {"bias": jnp.zeros((), jnp.bfloat16)}}

    def loss(self, params, batch, step):
        seen = jnp.sum(batch["m"] > 0)
        return Mean(jnp.sum(batch["m"]) * params["params"]["w"], jnp.sum(batch["m"])), Aux(
            effects={"seen": seen}
        )

    def apply_effects(self, variables, effects):
        return {"router": {"bias": variables["router"]["bias"] + effects["seen"].astype(jnp.float32)}}


@pytest.mark.parametrize("accumulation", [1, 4])
def test_effects_are_summed_and_applied_once_at_the_commit(accumulation):
    rows = np.ones((4 // accumulation,), np.float32)
    result, _ = run(Balanced(), [{"m": rows}] * accumulation, accumulation=accumulation)
    assert float(result.state.params["router"]["bias"]) == 4
    assert result.state.params["router"]["bias"].dtype == jnp.bfloat16


def test_effects_wait_for_the_commit():
    result, _ = run(Balanced(), [{"m": np.ones(2, np.float32)}] * 3, accumulation=4)
    assert float(result.state.params["router"]["bias"]) == 0
    assert int(result.state.accumulation["effects"]["000"]) == 6


def test_effects_of_a_window_without_support_are_dropped():
    result, _ = run(Balanced(), [{"m": np.zeros(2, np.float32)}] * 2, accumulation=2)
    assert float(result.state.params["router"]["bias"]) == 0


def test_loss_may_not_replace_params(toys):
    class Greedy(toys.Linear):
        def loss(self, params, batch, step):
            stats, _ = super().loss(params, batch, step)
            return stats, Aux(variables={"params": params["params"]})

    with pytest.raises(ValueError, match="optimizer alone moves"):
        run(Greedy(), [{"g": np.float32([1]), "m": np.float32([1])}])


def test_loss_must_be_a_scalar(toys):
    class Rows(toys.Linear):
        def loss(self, params, batch, step):
            return batch["g"] * params["params"]["w"], Aux()

    with pytest.raises(TypeError, match="sum over its axes"):
        run(Rows(), [{"g": np.float32([1, 2]), "m": np.float32([1, 1])}])


def test_loss_must_return_statistics_and_aux(toys):
    class Bare(toys.Linear):
        def loss(self, params, batch, step):
            return params["params"]["w"]

    with pytest.raises(TypeError, match=r"Bare.loss must return \(statistics, Aux\)"):
        run(Bare(), [{"g": np.float32([1]), "m": np.float32([1])}])


def test_single_window_takes_the_gradient_of_the_reduced_loss(toys):
    batch = ragged(12)[0]
    objective = toys.Regression()
    trainer = Trainer(objective, optax.sgd(1.0), key=KEY)
    start = trainer.initial_state()
    step = Clock(step=0, key=jax.random.fold_in(KEY, 0))
    expected = jax.grad(lambda p: scalar_loss(objective, {"params": p}, batch, step)[0])(
        start.params["params"]
    )
    result, _ = run(objective, [batch])
    np.testing.assert_allclose(
        start.params["params"]["w"] - result.state.params["params"]["w"], expected["w"], rtol=1e-5, atol=1e-7
    )
