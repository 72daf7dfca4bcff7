"""Likelihoods among kept ids, against a masked softmax over the whole vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.lm import LMObjective

ROWS, LENGTH, VOCAB, TEMPERATURE = 3, 6, 23, 0.7
MODEL = CausalTransformer(
    vocab_size=VOCAB,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=12,
    max_seq_len=LENGTH,
    final_logit_softcap=3.0,
    precision="highest",
)
VARIABLES = jax.tree.map(
    lambda leaf: 3.0 * leaf, unboxed(MODEL.init(jax.random.key(1), jnp.zeros((1, 1), jnp.int32)))
)
DRAW = np.random.default_rng(4)
TOKENS = DRAW.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)


def kept_sets():
    """A mask [B, S, V] of kept ids with the target in it, no id at all for one target of a row."""
    mask = DRAW.random((ROWS, LENGTH, VOCAB)) < 0.3
    np.put_along_axis(mask, TOKENS[:, 1:, None], True, -1)
    mask[:, 2] = False
    return mask


MASK = kept_sets()


def ragged(mask, spare=0):
    """Its entries as rows of (ids, columns), in a mixed order, with padding of every kind."""
    rows = [np.argwhere(row) for row in mask]
    width = max(map(len, rows)) + spare
    ids, columns = np.zeros((ROWS, width), np.int32), np.zeros((ROWS, width), np.int32)
    columns[:, -1] = LENGTH + 1
    for row, found in enumerate(rows):
        found = DRAW.permutation(found)
        ids[row, : len(found)], columns[row, : len(found)] = found[:, 1], found[:, 0] + 1
    return ids, columns


def sampled(variables, support, temperature=TEMPERATURE):
    scorer = LMObjective(MODEL, LENGTH)
    scores = scorer.token_scores(variables, TOKENS)
    return scorer.sampled_log_probs(variables, scores, TOKENS, support, temperature)


def dense(variables, mask, temperature=TEMPERATURE):
    logits = MODEL.apply(variables, TOKENS[:, :-1]) / temperature
    logits = jnp.where(mask | ~mask.any(-1, keepdims=True), logits, -jnp.inf)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), TOKENS[:, 1:, None], -1)[..., 0]


@pytest.mark.parametrize("spare", [1, 300])
def test_targets_are_renormalized_over_their_kept_ids(spare):
    found = jax.jit(sampled)(VARIABLES, ragged(MASK, spare))
    np.testing.assert_allclose(found, dense(VARIABLES, MASK), atol=1e-5)


def test_the_gradient_is_that_of_the_masked_softmax():
    weights = DRAW.normal(size=(ROWS, LENGTH))
    support = ragged(MASK, 1)
    own = jax.jit(jax.grad(lambda v: jnp.sum(weights * sampled(v, support))))(VARIABLES)
    expected = jax.jit(jax.grad(lambda v: jnp.sum(weights * dense(v, MASK))))(VARIABLES)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), own, expected)


def test_a_target_outside_its_kept_ids_had_no_chance():
    mask = MASK.copy()
    mask[0, 4] = np.arange(VOCAB) == (TOKENS[0, 5] + 1) % VOCAB
    found = np.asarray(sampled(VARIABLES, ragged(mask, 1)))
    assert found[0, 4] == -np.inf
    assert np.isfinite(np.delete(found.ravel(), 4)).all()


def test_shapes_that_do_not_belong_together_are_refused():
    ids, columns = ragged(MASK, 1)
    with pytest.raises(ValueError, match="support holds ids of shape"):
        sampled(VARIABLES, (ids, columns[:, 1:]))
