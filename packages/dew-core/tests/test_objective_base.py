"""The Objective contract: additive statistics, trees split and joined, defaults and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.inputs import Field, InputSpec
from dew.objectives import base
from dew.objectives.base import (
    Aux,
    Mean,
    Objective,
    Step,
    everything,
    freeze,
    mean_loss,
    merge,
    select,
    thaw,
    under,
)

NAMES = st.sampled_from(["a", "b", "c", "kernel"])
INNER = st.recursive(
    st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8
)
TREES = st.fixed_dictionaries(
    {"params": st.dictionaries(NAMES, INNER, min_size=1, max_size=3)},
    optional={"batch_stats": st.dictionaries(NAMES, INNER, min_size=1, max_size=2)},
)


def paths(tree, above=()):
    if not isinstance(tree, dict):
        return {above: tree}
    return {path: leaf for name, value in tree.items() for path, leaf in paths(value, (*above, name)).items()}


def chooses(data, tree):
    chosen = data.draw(st.sets(st.sampled_from(sorted(paths(tree)))))
    return chosen, lambda path: path in chosen


@given(st.data(), TREES)
def test_select_keeps_exactly_the_accepted_leaves(data, tree):
    chosen, keep = chooses(data, tree)
    assert paths(select(tree, keep)) == {path: leaf for path, leaf in paths(tree).items() if path in chosen}


@given(st.data(), TREES)
def test_merging_a_selection_back_changes_nothing(data, tree):
    _, keep = chooses(data, tree)
    assert merge(tree, select(tree, keep)) == tree


@given(st.data(), TREES)
def test_merge_takes_the_overlay_where_it_has_a_leaf_and_the_tree_elsewhere(data, tree):
    chosen, keep = chooses(data, tree)
    overlay = jax.tree.map(lambda leaf: ("new", leaf), select(tree, keep))
    for path, leaf in paths(merge(tree, overlay)).items():
        before = paths(tree)[path]
        assert leaf == (("new", before) if path in chosen else before)


def test_merge_keeps_a_collection_without_leaves():
    tree = {"params": {"a": 1, "rest": {}}, "moe": {}}
    assert merge(tree, {"params": {"a": 2}, "moe": {}}) == {"params": {"a": 2, "rest": {}}, "moe": {}}


def test_merge_refuses_a_leaf_the_tree_lacks():
    with pytest.raises(ValueError, match="params/b"):
        merge({"params": {"a": 1}}, {"params": {"b": 2}})


@given(st.data(), TREES)
def test_thaw_undoes_freeze(data, tree):
    chosen, keep = chooses(data, tree)
    params = {path for path in paths(tree) if path[0] == "params"}
    kept = params & chosen
    if not kept or kept == params:
        with pytest.raises(ValueError, match="none" if not kept else "all"):
            freeze(tree, keep)
        return
    split = freeze(tree, keep)
    assert {path for path in paths(split) if path[0] == "params"} == kept
    assert {("params", *path[1:]) for path in paths(split) if path[0] == "frozen"} == params - kept
    assert thaw(split) == tree


def test_freeze_refuses_a_tree_that_is_split_already():
    split = freeze({"params": {"a": 1, "b": 2}}, under("params", "a"))
    with pytest.raises(ValueError, match="already"):
        freeze(split, under("params", "a"))


def test_thaw_leaves_a_whole_tree_alone_and_refuses_a_leaf_on_both_sides():
    assert thaw({"params": {"a": 1}}) == {"params": {"a": 1}}
    with pytest.raises(ValueError, match="'a' stands in params and in 'frozen'"):
        thaw({"params": {"a": 1}, "frozen": {"a": 1}})


def test_under_accepts_what_lies_below_its_prefix_and_nothing_else():
    accepts = under("params", "encoder")
    assert accepts(("params", "encoder", "kernel"))
    assert not accepts(("params", "encoder_2", "kernel"))
    assert not accepts(("params",))
    assert everything(("anything",))


def test_mean_loss_divides_once():
    value, active = mean_loss(Mean(jnp.float32(92), jnp.float32(10)))
    assert (float(value), bool(active)) == (pytest.approx(9.2), True)


def test_mean_loss_and_its_gradient_are_zero_without_mass():
    def loss(x):
        return mean_loss(Mean(x * 0.0, jnp.float32(0)))[0]

    value, gradient = jax.value_and_grad(loss)(jnp.float32(3))
    assert (float(value), float(gradient)) == (0.0, 0.0)
    assert not mean_loss(Mean(0.0, 0.0))[1]


def test_mean_loss_has_the_gradient_of_the_total_over_the_mass():
    gradient = jax.grad(lambda x: mean_loss(Mean(x**2, jnp.float32(4)))[0])(jnp.float32(3))
    assert float(gradient) == pytest.approx(2 * 3 / 4)


class Held(Objective):
    inputs = InputSpec(Field("x", (1,)))

    def __init__(self, held=None):
        self.held = held

    def held_variables(self):
        return self.held

    def init(self, key, variables=None):
        if variables is not None:
            return variables
        return {"params": {"w": jax.random.normal(key, (3,))}}

    def loss(self, params, batch, step):
        return Mean(jnp.sum(params["params"]["w"] * batch["x"]), 2.0), Aux({"seen": jnp.float32(1)})


STEP = Step(step=0, key=jax.random.key(0))


def test_scalar_loss_reduces_the_statistics_and_passes_the_reports_on():
    variables = {"params": {"w": jnp.arange(3.0)}}
    value, aux = base.scalar_loss(Held(), variables, {"x": jnp.ones(3)}, STEP)
    assert float(value) == pytest.approx(1.5)
    assert float(aux.metrics["seen"]) == 1.0


def test_a_scalar_counts_as_one_unit_of_mass_and_other_statistics_need_a_reduction():
    value, active = Held().reduce_loss(jnp.float32(2.5))
    assert (float(value), bool(active)) == (2.5, True)
    with pytest.raises(TypeError, match=r"Held\.loss returns tuple"):
        Held().reduce_loss((1.0, 2.0))


def test_a_held_tree_enters_a_compiled_initialisation_as_an_argument():
    big = {"params": {"w": jnp.arange(4096.0)}}
    lowered = jax.jit(lambda init, key: init(key)).lower(Held(big).initializer, jax.random.key(0))
    assert "dense<" not in lowered.as_text() or len(lowered.as_text()) < 4096
    np.testing.assert_array_equal(Held(big).initializer(jax.random.key(0))["params"]["w"], np.arange(4096.0))


def test_an_objective_without_held_arrays_draws_from_the_key():
    first = Held().initializer(jax.random.key(1))["params"]["w"]
    np.testing.assert_array_equal(first, jax.random.normal(jax.random.key(1), (3,)))


def test_defaults_evaluate_nothing_show_what_was_scored_and_count_rows():
    objective = Held()
    batch = {"x": np.ones((5, 3))}
    assert objective.evaluate({}, batch, STEP) is None
    assert objective.preview({}, batch, STEP, scored="scored") == "scored"
    assert objective.count_units(batch) == 5
    assert objective.bank_sites == () and objective.ema is None and objective.artifact is None


def test_what_an_objective_does_not_define_is_refused_by_name():
    objective = Held()
    with pytest.raises(TypeError, match="Held emits effects but does not define apply_effects"):
        objective.apply_effects({}, None)
    with pytest.raises(TypeError, match="Held scores no token logits"):
        objective.predict({}, {}, STEP, train=True)
    with pytest.raises(TypeError, match="Held has no inference task"):
        objective.pipeline(None)


def test_step_and_prediction_take_keywords_alone_and_cross_jit():
    with pytest.raises(TypeError):
        Step(0, jax.random.key(0))
    with pytest.raises(TypeError):
        base.Prediction(jnp.ones(1), jnp.ones(1), jnp.ones(1))
    assert int(jax.jit(lambda step: step.step + 1)(Step(step=4, key=jax.random.key(0)))) == 5


def test_aux_has_empty_reports_by_default():
    aux = Aux()
    assert (aux.metrics, aux.variables, aux.qk_stats, aux.effects) == ({}, None, None, None)


def test_totals_of_batches_add_and_divide_once():
    merged = base.merge_totals((2.0, 1.0), (90.0, 9.0))
    assert base.mean_of_totals(merged) == pytest.approx(9.2)
    with pytest.raises(ValueError, match="counted 0"):
        base.mean_of_totals((0.0, 0.0))
