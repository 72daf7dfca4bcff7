"""A token drawn through blocks has the distribution that was asked for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dew.sampling.text.loop import block_width, choose

DRAWS = 40_000


def drawn(log_probs, seed=0, draws=DRAWS):
    keys = jax.vmap(jax.random.key)(jnp.arange(seed, seed + draws, dtype=jnp.uint32))

    def part(keys):
        rows = jnp.broadcast_to(jnp.asarray(log_probs, jnp.float32), (keys.shape[0], len(log_probs)))
        return choose(keys, rows, certain=False)

    return np.asarray(jax.lax.map(part, keys.reshape(-1, 1000))).ravel()


@pytest.mark.parametrize("vocabulary", [1, 2, 5, 16, 17, 100])
def test_every_token_comes_as_often_as_its_probability(vocabulary):
    rng = np.random.default_rng(vocabulary)
    law = rng.dirichlet(np.full(vocabulary, 0.5))
    law = np.maximum(law, 1e-3) / np.maximum(law, 1e-3).sum()
    seen = np.bincount(drawn(np.log(law), seed=10**6 * vocabulary), minlength=vocabulary)
    assert seen.size == vocabulary
    if vocabulary > 1:
        assert stats.chisquare(seen, DRAWS * law).pvalue > 1e-3


def test_tokens_that_filters_took_away_never_come():
    log_probs = np.full(100, -np.inf)
    log_probs[[3, 40, 99]] = np.log([0.2, 0.3, 0.5])
    seen = np.bincount(drawn(log_probs), minlength=100)
    assert set(np.flatnonzero(seen)) == {3, 40, 99}
    assert stats.chisquare(seen[[3, 40, 99]], DRAWS * np.asarray([0.2, 0.3, 0.5])).pvalue > 1e-3


def test_places_in_a_block_and_the_block_are_drawn_apart():
    """With one key for both, the noise of block b would be that of place b in it."""
    table = np.zeros((16, 16))
    tokens = drawn(np.full(256, -np.log(256.0)))
    np.add.at(table, (tokens // 16, tokens % 16), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_rare_tokens_come_as_often_as_they_should():
    """1,023 tokens of 3e-8 each, together 31 of a million draws."""
    rare = 3e-8
    log_probs = np.log(np.r_[1 - 1023 * rare, np.full(1023, rare)])
    seen = int(np.sum(drawn(log_probs, draws=1_000_000) > 0))
    expected = stats.poisson(1_000_000 * 1023 * rare)
    assert expected.ppf(1e-3) < seen < expected.ppf(1 - 1e-3)


@pytest.mark.parametrize(
    ("vocabulary", "width"), [(1, 1), (2, 2), (16, 4), (17, 8), (4096, 64), (50_257, 256)]
)
def test_a_block_holds_some_square_root_of_the_tokens(vocabulary, width):
    assert block_width(vocabulary) == width
    assert width**2 >= vocabulary
