"""`Sampling` as plain values."""

import subprocess
import sys

import pytest

from dew.sampling import Sampling
from dew.sampling.decoding import EndOfSequence, Greedy, MinP, Temperature, TopK, TopP


def test_the_policy_is_four_transforms_in_this_order():
    policy = Sampling(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    assert policy.transforms() == (Temperature(0.5), TopK(7), TopP(0.9), MinP(0.1))


def test_a_filter_that_keeps_everything_is_left_out():
    assert Sampling().transforms() == (Temperature(1.0),)


def test_temperature_zero_is_greedy_and_filters_nothing():
    assert Sampling(temperature=0, top_k=3, top_p=0.5, min_p=0.2).transforms() == (Greedy(),)


@pytest.mark.parametrize(
    ("given", "stored"), [(3, (3,)), ((3, 5, 3), (3, 5)), ([3], (3,)), (None, None), ((), None)]
)
def test_end_ids_become_a_tuple(given, stored):
    assert Sampling(eos_id=given).eos_id == stored


def test_end_ids_are_a_criterion():
    assert Sampling(eos_id=(3, 5)).criteria() == (EndOfSequence((3, 5)),)
    assert Sampling().criteria() == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 1.01},
        {"min_p": -0.5},
        {"eos_id": -1},
        {"pad_id": -1},
    ],
)
def test_a_field_outside_its_range_is_refused_by_name(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=f"{name}="):
        Sampling(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "1"},
        {"top_k": 5.0},
        {"top_k": True},
        {"top_p": None},
        {"min_p": (0.1,)},
        {"pad_id": 0.0},
        {"eos_id": ("1",)},
        {"eos_id": 1.0},
    ],
)
def test_a_field_of_another_kind_is_refused_by_name(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        Sampling(**fields)


def test_the_policy_module_needs_no_numerical_library():
    code = (
        "import sys, dew.sampling.text.config; "
        "print([m for m in ('jax', 'numpy', 'flax', 'jaxtyping', 'tyro') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
