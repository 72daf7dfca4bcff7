"""The space of a sweep and its points: what is drawn, and what is refused."""

import math

import pytest

from dew.config.sweep import Choice, Range, parse_dimension
from dew.config.sweep.ledger import Trial
from dew.config.sweep.space import grid, random_point, space_from, space_of, space_record
from dew.config.sweep.suggest import check_method, suggested


@pytest.mark.parametrize(
    ("text", "field", "dimension"),
    [
        ("optim.learning_rate=1e-4,3e-4", "optim.learning_rate", Choice((1e-4, 3e-4))),
        ("--data.seq-len=64,128", "data.seq_len", Choice((64, 128))),
        ("optim.optimizer=adam,muon", "optim.optimizer", Choice(("adam", "muon"))),
        ("x=true,null", "x", Choice((True, None))),
        ("x=[[1,2],[3]]", "x", Choice(([1, 2], [3]))),
        ("x=1e-4..1e-2:log", "x", Range(1e-4, 1e-2, log=True)),
        ("x=2..9", "x", Range(2, 9)),
        ("x=-0.5..0.5", "x", Range(-0.5, 0.5)),
    ],
)
def test_values_are_read_as_they_are_written(text, field, dimension):
    assert parse_dimension(text) == (field, dimension)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim.learning_rate", "must read FIELD=VALUES"),
        ("x=", r"space x: values=\(\) must hold one value"),
        ("x=1,2,1", "space x: values name 1 twice"),
        ("x=3..2", "space x: low=3 must be below high=2"),
        ("x=0..1:log", "low=0 must be above 0"),
        ("x=a..b", "'a' is no number"),
    ],
)
def test_values_that_make_no_space_are_refused_by_the_field(text, message):
    with pytest.raises(ValueError, match=message):
        parse_dimension(text)


def test_a_space_needs_fields_each_once():
    with pytest.raises(ValueError, match="space is empty"):
        space_of([])
    with pytest.raises(ValueError, match="names x twice"):
        space_of([("x", Choice((1,))), ("x", Choice((2,)))])


def test_the_grid_is_every_combination_in_order():
    space = {"a": Choice((1, 2)), "b": Choice(("x", "y"))}
    assert grid(space) == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]
    with pytest.raises(ValueError, match=r"space c is a range.*--method random"):
        grid({**space, "c": Range(0.0, 1.0)})


def test_a_random_point_depends_on_seed_and_number_alone():
    space = {"rate": Range(1e-4, 1e-2, log=True), "size": Range(2, 5), "kind": Choice(("a", "b"))}
    points = [random_point(space, 3, number) for number in range(200)]
    assert points[7] == random_point(space, 3, 7) != random_point(space, 4, 7)
    assert {point["size"] for point in points} == {2, 3, 4, 5}
    assert {point["kind"] for point in points} == {"a", "b"}
    below = sum(point["rate"] < 1e-3 for point in points)
    assert all(1e-4 <= point["rate"] <= 1e-2 for point in points)
    assert abs(below - 100) < 4 * math.sqrt(50), "half of a logarithmic range lies below its geometric middle"


def test_a_space_comes_back_from_its_record():
    space = {"a": Choice((1, "x", None)), "b": Range(1, 8, log=True), "c": Range(0.0, 1.0)}
    assert space_from(space_record(space)) == space


def test_methods_and_their_numbers_are_checked():
    space = {"a": Choice((1, 2, 3))}
    assert check_method("grid", None, space) == 3 and check_method("random", 5, space) == 5
    for method, trials, message in (
        ("grid", 4, "runs every combination; leave trials out"),
        ("random", None, "trials=None: method=random needs a number"),
        ("bayes", 3, "method='bayes' must be grid, random, optuna"),
    ):
        with pytest.raises(ValueError, match=message):
            check_method(method, trials, space)


def bowl(point):
    return (math.log10(point["rate"]) + 3) ** 2 + (point["kind"] != "b")


def test_optuna_learns_from_the_ledger_alone():
    """Twenty-five trials on a bowl with its floor at rate 1e-3 and kind b; a replay suggests the same."""
    pytest.importorskip("optuna")
    space = {"rate": Range(1e-5, 1e-1, log=True), "kind": Choice(("a", "b", ["c"]))}
    done = []
    for number in range(25):
        point = suggested("optuna", space, seed=1, number=number, done=done, higher=False)
        done.append(Trial(number, point, "completed", bowl(point)))
    again = suggested("optuna", space, seed=1, number=24, done=done[:24], higher=False)
    assert again == done[24].point
    assert min(trial.value for trial in done) < 0.2
    late = sum(trial.value for trial in done[12:]) / 13
    assert late < sum(trial.value for trial in done[:12]) / 12


def test_optuna_goes_up_where_higher_is_better_and_knows_failures():
    pytest.importorskip("optuna")
    space = {"x": Range(0.0, 1.0)}
    done = [Trial(0, {"x": 0.5}, "failed", None, "boom")]
    for number in range(1, 20):
        point = suggested("optuna", space, seed=0, number=number, done=done, higher=True)
        done.append(Trial(number, point, "completed", point["x"]))
    assert sum(trial.value for trial in done[-5:]) / 5 > 0.8
