"""Averages, rejections and the loss scale: what moves on an attempt, on an acceptance and on a commit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.objectives.base import Aux, EMASpec, Objective, under
from dew.training import Trainer
from dew.training.ema import advanced, initial_average
from dew.training.scale import GROWTH_INTERVAL, INITIAL, LossScale, adjusted

KEY = jax.random.key(1)


def row(value):
    return {"g": np.float32([value]), "m": np.float32([1])}


class Unaveraged(Objective):
    """A loss of 1 where there is no average to read."""

    def init(self, key, variables=None):
        return {"params": {"w": jnp.ones(())}}

    def loss(self, params, batch, step):
        return params["params"]["w"] * (step.ema is None), Aux()


def attempts(trainer, batches):
    """The result of every attempt."""
    state, _, _ = trainer.place()
    compiled = trainer.compile(state, batches[0])
    results = []
    for batch in batches:
        results.append(compiled(state, batch))
        state = results[-1].state
    return results


@pytest.mark.parametrize(("decay", "expected"), [(0.99, 0.99996), (0.999, 0.63230), (0.9999, 0.09517)])
def test_average_of_bfloat16_parameters_follows_its_law(decay, expected):
    spec = EMASpec(lambda n: decay)
    ones = {"params": {"w": jnp.ones((), jnp.bfloat16)}}
    average = initial_average({"params": {"w": jnp.zeros((), jnp.bfloat16)}}, spec)
    step = jax.jit(lambda average: advanced(average, ones, spec, jnp.asarray(0)))
    for _ in range(1000):
        average = step(average)
    assert float(average["params"]["w"]) == pytest.approx(expected, abs=1e-4)


def test_average_reads_the_updates_completed_before_the_commit(toys):
    spec = EMASpec(lambda n: jnp.where(n == 0, 0.0, 0.5))
    trainer = Trainer(toys.Linear(ema=spec), optax.sgd(1.0), key=KEY, accumulation=2)
    states = [result.state for result in attempts(trainer, [row(-1)] * 4)]
    assert [float(state.ema["params"]["w"]) for state in states] == [0, 1, 1, 1.5]
    assert [float(state.params["params"]["w"]) for state in states] == [0, 1, 1, 2]


def test_unit_decay_keeps_the_old_leaf_bit_for_bit():
    old = {"params": {"w": jnp.float32([np.inf, 1e-40, 3.0])}}
    kept = advanced(
        old, {"params": {"w": jnp.float32([1, 1, np.nan])}}, EMASpec(lambda n: 1.0), jnp.asarray(5)
    )
    np.testing.assert_array_equal(
        np.asarray(kept["params"]["w"]).view(np.uint32), np.asarray(old["params"]["w"]).view(np.uint32)
    )


def test_averaged_overlays_the_selected_leaves_alone(toys):
    spec = EMASpec(lambda n: 1.0, select=under("params", "slow"))
    live = {"params": {"slow": {"w": jnp.ones(2)}, "fast": {"w": jnp.ones(2)}}}
    average = initial_average(live, spec)
    assert jax.tree.structure(average) == jax.tree.structure({"params": {"slow": {"w": 0}}})
    moved = {
        "params": {"slow": {"w": jnp.zeros(2)}, "fast": {"w": jnp.zeros(2)}},
        "counts": {"n": jnp.ones(())},
    }
    state = Trainer(toys.Linear(), optax.sgd(1.0), key=KEY).initial_state()
    laid = state.replace(params=moved, ema=average).averaged
    assert jax.tree.map(float, jax.tree.map(jnp.sum, laid)) == {
        "params": {"slow": {"w": 2.0}, "fast": {"w": 0.0}},
        "counts": {"n": 1.0},
    }


def test_loss_reads_the_average_as_it_stood_before_the_commit(toys):
    class Seeing(toys.Linear):
        def loss(self, params, batch, step):
            stats, _ = super().loss(params, batch, step)
            return stats, Aux({"average": step.ema["params"]["w"], "live": params["params"]["w"]})

    spec = EMASpec(lambda n: 0.5)
    results = attempts(Trainer(Seeing(ema=spec), optax.sgd(1.0), key=KEY), [row(-1)] * 3)
    assert [float(result.metrics["live"]) for result in results] == [0, 1, 2]
    assert [float(result.metrics["average"]) for result in results] == [0, 0.5, 1.25]
    bare = attempts(Trainer(Unaveraged(), optax.sgd(1.0), key=KEY), [row(-1)])
    assert float(bare[0].loss) == 1.0


def test_state_without_an_average_has_no_averaged_variables(toys):
    state = Trainer(toys.Linear(), optax.sgd(1.0), key=KEY).initial_state()
    with pytest.raises(ValueError, match="keeps no moving average"):
        _ = state.averaged


def test_average_that_selects_nothing_is_refused(toys):
    spec = EMASpec(lambda n: 0.9, select=under("params", "absent"))
    with pytest.raises(ValueError, match="keeps no leaf"):
        Trainer(toys.Linear(ema=spec), optax.sgd(1.0), key=KEY).initial_state()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_forced_overflow_at_attempt_3_leaves_schedule_count_ema_weight_decay_and_effects_untouched(
    toys, accumulation
):
    """The rate falls with each update, and decay pulls on a weight whose gradient is 0: both would show."""

    class Counting(toys.Linear):
        def init(self, key, variables=None):
            held = super().init(key)
            return {"params": {**held["params"], "idle": jnp.ones(())}, "seen": {"commits": jnp.zeros(())}}

        def loss(self, params, batch, step):
            stats, aux = super().loss(params, batch, step)
            return stats, aux.replace(effects={"seen": {"rows": jnp.sum(batch["m"])}})

        def apply_effects(self, variables, effects):
            return {"seen": {"commits": variables["seen"]["commits"] + effects["seen"]["rows"]}}

    rate = optax.linear_schedule(1.0, 0.0, 10)
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(rate))
    objective = Counting(ema=EMASpec(lambda n: 0.5, under("params")), start=1.0)
    options = {"key": KEY, "dynamic_scale": True, "accumulation": accumulation}
    data = [row(1), row(1), row(np.inf), row(1), row(1)]
    overflown = attempts(Trainer(objective, optimizer, **options), data)
    without = attempts(Trainer(objective, optimizer, **options), [row(1)] * 4)
    before, after = overflown[1].state, overflown[2].state
    assert [bool(result.accepted) for result in overflown] == [True, True, False, True, True]
    for name in ("microstep", "updates", "params", "opt_state", "ema", "accumulation"):
        jax.tree.map(np.testing.assert_array_equal, getattr(before, name), getattr(after, name))
    assert [int(result.state.step) for result in overflown] == [1, 2, 3, 4, 5]
    assert [float(result.state.scale.value) / INITIAL for result in overflown] == [1, 1, 0.5, 0.5, 0.5]
    for name in ("updates", "params", "opt_state", "ema"):
        one, other = getattr(overflown[-1].state, name), getattr(without[-1].state, name)
        jax.tree.map(np.testing.assert_array_equal, one, other)
    commits = 4 // accumulation
    idle = np.prod([1 - 0.1 * (1 - 0.1 * update) for update in range(commits)])
    assert float(overflown[-1].state.params["params"]["idle"]) == pytest.approx(idle, rel=1e-6)
    assert float(overflown[-1].state.params["seen"]["commits"]) == 4


def test_rejection_keeps_the_accepted_prefix_of_the_window(toys):
    trainer = Trainer(toys.Linear(), optax.sgd(1.0), key=KEY, accumulation=2)
    results = attempts(trainer, [row(2), row(np.nan), row(4)])
    assert [bool(r.accepted) for r in results] == [True, False, True]
    assert [int(r.state.microstep) for r in results] == [1, 1, 2]
    assert float(results[-1].state.params["params"]["w"]) == -3.0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_rejected_attempt_leaves_the_mutable_collections_as_they_were(toys, accumulation):
    class Counting(toys.Linear):
        def init(self, key, variables=None):
            return {**super().init(key), "counts": {"seen": jnp.zeros(())}}

        def loss(self, params, batch, step):
            stats, _ = super().loss(params, batch, step)
            return stats, Aux(variables={"counts": {"seen": params["counts"]["seen"] + 1}})

    trainer = Trainer(Counting(), optax.sgd(1.0), key=KEY, accumulation=accumulation)
    results = attempts(trainer, [row(-1), row(np.nan), row(-1)])
    assert [float(result.state.params["counts"]["seen"]) for result in results] == [1, 1, 2]
    assert [bool(result.accepted) for result in results] == [True, False, True]


def test_finite_loss_can_have_a_rejected_gradient(toys):
    class Kink(toys.Linear):
        def loss(self, params, batch, step):
            _stats, aux = super().loss(params, batch, step)
            return jnp.sqrt(params["params"]["w"] ** 2), aux

    (result,) = attempts(Trainer(Kink(), optax.sgd(1.0), key=KEY), [row(1)])
    assert bool(result.loss_finite) and not bool(result.accepted)
    assert (float(result.state.params["params"]["w"]), int(result.state.updates)) == (0, 0)


def test_scaled_gradients_survive_float16(toys):
    """`2^-26` is below float16's smallest subnormal; scaled by `2^15` it is not."""

    class Half(toys.Linear):
        def loss(self, params, batch, step):
            _stats, aux = super().loss(params, batch, step)
            half = params["params"]["w"].astype(jnp.float16) * jnp.float16(2.0**-13)
            return half.astype(jnp.float32) * 2.0**-13, aux

    for scaled, expected in ((False, 0.0), (True, -(2.0**-26))):
        trainer = Trainer(Half(), optax.sgd(1.0), key=KEY, dynamic_scale=scaled, accumulation=1)
        (result,) = attempts(trainer, [row(1)])
        assert float(result.state.params["params"]["w"]) == expected


@pytest.mark.parametrize("accumulation", [1, 3])
def test_scale_leaves_the_update_as_it_is(toys, accumulation):
    batches = [row(1.5), row(-0.25), row(3)][:accumulation]
    plain, scaled = (
        attempts(
            Trainer(toys.Linear(), optax.sgd(1.0), key=KEY, accumulation=accumulation, dynamic_scale=on),
            batches,
        )[-1].state.params["params"]["w"]
        for on in (False, True)
    )
    assert float(plain) == float(scaled) != 0


def test_scale_doubles_after_enough_finite_attempts():
    scale = LossScale(jnp.float32(4), jnp.int32(GROWTH_INTERVAL - 1))
    grown = adjusted(scale, jnp.asarray(True))
    assert (float(grown.value), int(grown.streak)) == (8, 0)
    halved = adjusted(scale, jnp.asarray(False))
    assert (float(halved.value), int(halved.streak)) == (2, 0)
    assert float(adjusted(LossScale(jnp.float32(1), jnp.int32(0)), jnp.asarray(False)).value) == 1


def test_custom_step_owns_every_clock_but_the_attempted_one(toys):
    from dataclasses import replace

    def factory(objective, optimizer):
        def body(state, batch):
            moved = {"params": {"w": state.params["params"]["w"] + 1}}
            return (
                replace(state, params=moved, updates=state.updates + 5),
                jnp.float32(7),
                Aux({"a": jnp.float32(2)}),
            )

        return body

    (result,) = attempts(Trainer(toys.Linear(), optax.sgd(1.0), key=KEY, step=factory), [row(1)])
    clocks = (result.state.step, result.state.microstep, result.state.updates)
    assert tuple(map(int, clocks)) == (1, 0, 5)
    assert (float(result.loss), float(result.metrics["a"]), bool(result.accepted)) == (7, 2, False)


def test_draws_follow_the_attempts_and_the_objective_s_clock_the_accepted(toys):
    class Told(toys.Linear):
        def loss(self, params, batch, step):
            stats, _ = super().loss(params, batch, step)
            return stats, Aux({"draw": jax.random.uniform(step.key), "clock": step.step})

    results = attempts(Trainer(Told(), optax.sgd(1.0), key=KEY), [row(1), row(np.nan), row(1)])
    draws = [float(jax.random.uniform(jax.random.fold_in(KEY, attempt))) for attempt in range(3)]
    assert [float(result.metrics["draw"]) for result in results] == draws
    assert [int(result.metrics["clock"]) for result in results] == [0, 1, 1]


@pytest.mark.parametrize("key", [0, np.zeros(2, np.uint32)])
def test_untyped_key_is_refused(toys, key):
    with pytest.raises(TypeError, match=r"jax\.random\.key"):
        Trainer(toys.Linear(), optax.sgd(1.0), key=key)
