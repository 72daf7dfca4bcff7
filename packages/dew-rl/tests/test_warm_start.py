"""The supervised start: what it reads, what it learns and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.config import TrainerConfig
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.rl import WarmStart

MODEL = CausalTransformer(
    vocab_size=6, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, max_seq_len=8
)
START = WarmStart(steps=60, batch_size=4, learning_rate=2e-2)


def odds(variables, row):
    """The model's distribution after `row`."""
    return np.asarray(jax.nn.softmax(MODEL.apply(variables, jnp.asarray([row]))[0, -1]))


def test_rows_of_unequal_length_teach_their_ids_and_not_their_filling():
    rows = [[1, 2, 3, 4], [5, 2]] * (START.rows // 2)
    variables = START.variables(MODEL, rows, TrainerConfig())
    assert odds(variables, [1, 2, 3]).argmax() == 4 and odds(variables, [1, 2, 3])[4] > 0.9
    # Nothing stood behind the short row, so nothing was learned there, least of all the filling.
    assert odds(variables, [5, 2])[0] < 0.5


def test_equal_seeds_start_alike_and_others_do_not():
    rows = [[1, 2, 3]] * START.rows
    first, again, other = (
        START.variables(MODEL, rows, TrainerConfig(seed=seed))["params"]["lm_head"]["kernel"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="read 240 examples, and 3 are given"):
        START.variables(MODEL, [[1, 2]] * 3, TrainerConfig())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": -1}, r"warm_start.steps=-1"),
        ({"batch_size": 0}, r"warm_start.batch_size=0"),
        ({"learning_rate": 0.0}, r"warm_start.learning_rate=0.0"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        WarmStart(**fields)
