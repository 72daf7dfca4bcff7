"""Attention whose positions a mesh splits: the formula's values, the exchange each shape takes."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from dew.nn.attention.sequence import plan_exchange
from dew.nn.tokens import check_positions, merged, parted, token_axes
from dew.testing.devices import result_on_devices
from dew.training.mesh import AXES, BATCH_AXES

JOBS = Path(__file__).with_name("sequence_jobs.py")
GATHER = {"all-gather": 2, "reduce-scatter": 2}


def over(**sizes: int):
    """Within a mesh of shapes alone."""
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    return jax.sharding.use_abstract_mesh(AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES)))


def exchange(heads: int, key_heads: int, queries: int = 16, keys: int = 16, **options: bool):
    options = {"ordered": True, "positioned": queries != keys, **options}
    plan = plan_exchange((4, queries, heads, 8), (4, keys, key_heads, 8), **options)
    return None if plan is None else plan.exchange


@pytest.mark.parametrize(
    ("sizes", "heads", "key_heads", "expected"),
    [
        ({"sequence": 4}, 8, 8, "all-to-all"),
        ({"sequence": 4}, 8, 4, "all-to-all"),
        ({"sequence": 4}, 8, 2, "gather"),
        ({"sequence": 4}, 6, 6, "gather"),
        ({"sequence": 4, "tensor": 2}, 8, 8, "all-to-all"),
        ({"sequence": 4, "tensor": 2}, 8, 4, "gather"),
        ({"sequence": 2, "tensor": 2}, 6, 6, "gather"),
        ({"tensor": 2}, 8, 8, None),
    ],
)
def test_heads_are_traded_where_the_axis_divides_those_a_device_has(sizes, heads, key_heads, expected):
    with over(**sizes):
        assert exchange(heads, key_heads) == expected


@pytest.mark.parametrize(
    ("queries", "keys", "expected", "keys_split"),
    [(16, 16, "all-to-all", True), (18, 16, "gather", True), (16, 7, "gather", False), (3, 16, None, None)],
)
def test_lengths_that_do_not_divide_take_the_gather_and_a_step_of_decoding_none(
    queries, keys, expected, keys_split
):
    with over(sequence=4):
        assert exchange(8, 8, queries, keys) == expected
        plan = plan_exchange((4, queries, 8, 8), (4, keys, 8, 8), ordered=False, positioned=False)
        assert plan is None or (plan.keys is not None) == keys_split


def test_rows_that_the_batch_axes_do_not_divide_stay_whole():
    with over(sequence=2, fsdp=4):
        assert token_axes(8, 6) == (BATCH_AXES, "sequence")
        assert token_axes(6, 6) == (None, "sequence")
        assert token_axes(8, 5) == (BATCH_AXES, None)


def test_a_length_that_the_axis_does_not_divide_is_refused_with_lengths_that_work():
    with over(sequence=4):
        check_positions("seq_len", 12)
        with pytest.raises(ValueError, match=r"seq_len=14 .*sequence=4, .*use 12 or 16, or mesh.sequence=2"):
            check_positions("seq_len", 14)
        with pytest.raises(ValueError, match=r"use 4, or mesh.sequence=1"):
            check_positions("seq_len", 3)


def test_merged_tokens_stand_by_device_and_come_apart_again():
    tokens = jnp.arange(4 * 6).reshape(4, 6)
    with over(sequence=3, data=2):
        flat = jax.eval_shape(merged, tokens)
        assert flat.shape == (24,)
        text = str(jax.make_jaxpr(lambda x: parted(merged(x), 4, 6))(tokens))
    assert "transpose" in text
    np.testing.assert_array_equal(merged(tokens), tokens.reshape(-1))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    return result_on_devices(str(JOBS))


@pytest.mark.slow
def test_every_mask_gives_the_formula_and_its_gradients(outcomes):
    # Gradients of keys sum over up to 8 heads of 96 queries, in another order.
    wrong = {case: each["gaps"] for case, each in outcomes.items() if max(each["gaps"]) > 2e-5}
    assert len(outcomes) == 25 and not wrong, wrong


@pytest.mark.slow
def test_the_compiled_program_exchanges_what_the_plan_says_and_no_more(outcomes):
    for case, each in outcomes.items():
        shards = 4 if "sequence 4" in case else 2
        # Four arrays there and, in the gradient, four back, each in as many pieces as devices.
        traded = {"all-to-all": 8 * shards}
        if case.startswith(("one key head", "two key heads")):
            assert each["exchanges"] == GATHER, case
        elif case.startswith("one query"):
            assert each["exchanges"] == {}, case
        elif not case.startswith(("length 30", "across")):
            assert each["exchanges"] == traded, case


@pytest.mark.slow
def test_keys_that_the_axis_does_not_divide_are_fetched_once_and_their_gradients_summed(outcomes):
    for case in ("length 30", "across"):
        exchanges = outcomes[f"{case}, sequence 4"]["exchanges"]
        assert exchanges.pop("all-gather", 0) in (0, 2) and exchanges == {"all-reduce": 2}, case
