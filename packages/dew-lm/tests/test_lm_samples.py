"""The text preview."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, Samples, prompt_batch
from dew.sampling import Sampling

MODEL = CausalTransformer(
    vocab_size=31, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, max_seq_len=16
)
VARIABLES = unboxed(MODEL.init(jax.random.key(2), jnp.zeros((1, 1), jnp.int32)))
OTHER = unboxed(MODEL.init(jax.random.key(3), jnp.zeros((1, 1), jnp.int32)))


def spelled(ids):
    return " ".join(map(str, ids))


def greedy(variables, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(MODEL.apply(variables, np.array([ids]))[0, -1])))
    return spelled(ids[len(prompt) :])


def preview(variables, ema=None, prompt=(4, 9, 2)):
    samples = Samples(prompt, 5, Sampling(temperature=0), spelled)
    objective = LMObjective(MODEL, 8, samples=samples)
    return objective.preview(variables, {}, Step(step=0, key=jax.random.key(0), ema=ema))


def test_a_preview_continues_the_prompt_with_the_best_tokens():
    shown = preview(VARIABLES)
    assert list(shown.prompts) == ["4 9 2"]
    assert list(shown.texts) == [greedy(VARIABLES, (4, 9, 2), 5)]


def test_every_prompt_has_a_continuation():
    shown = preview(VARIABLES, prompt=((4, 9), (1, 3)))
    assert list(shown.texts) == [greedy(VARIABLES, prompt, 5) for prompt in ((4, 9), (1, 3))]


def test_a_preview_shows_the_average_where_there_is_one():
    assert list(preview(VARIABLES, ema=OTHER).texts) == [greedy(OTHER, (4, 9, 2), 5)]


def test_an_average_that_is_a_frozen_reference_is_not_shown():
    class Refined(LMObjective):
        ema_is_reference = True

    objective = Refined(MODEL, 8, samples=Samples((4, 9, 2), 5, Sampling(temperature=0), spelled))
    shown = objective.preview(VARIABLES, {}, Step(step=0, key=jax.random.key(0), ema=OTHER))
    assert list(shown.texts) == [greedy(VARIABLES, (4, 9, 2), 5)]


def test_without_samples_nothing_is_shown():
    assert LMObjective(MODEL, 8).preview(VARIABLES, {}, Step(step=0, key=jax.random.key(0))) is None


def test_prompts_become_int32_rows():
    assert prompt_batch([1, 2]).tolist() == [[1, 2]]
    assert prompt_batch([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert prompt_batch(np.array([[1, 2]])).dtype == jnp.int32


def test_prompts_of_different_lengths_and_empty_ones_are_refused():
    with pytest.raises(ValueError, match=r"lengths \[1, 2\]"):
        prompt_batch([[1], [2, 3]])
    with pytest.raises(ValueError, match="holds no token"):
        prompt_batch([])
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        Samples((1,), 0)
