"""The contract of strategies: what a strategy of one's own is given, may do and must return."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.sampling import Draws, Sample, Sampling, Speculative, generate


class Chain(nn.Module):
    """A Markov chain as a decoder whose cache holds the tokens it has read."""

    vocab_size: int = 5
    max_seq_len: int = 64

    def setup(self):
        self.table = self.param("table", nn.initializers.zeros, (self.vocab_size, self.vocab_size))

    def init_cache(self, rows, capacity):
        return jnp.full((rows, capacity), -1, jnp.int32)

    def head_weight(self, params):
        return jnp.eye(self.vocab_size)

    def decode(self, tokens, positions, valid, cache):
        rows = jnp.arange(tokens.shape[0])[:, None]
        slots = jnp.where(valid, positions, cache.shape[1])
        return self.table[tokens], cache.at[rows, slots].set(tokens, mode="drop")


VARIABLES = {"params": {"table": jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)}}


@dataclass(frozen=True)
class SecondBest:
    """Takes the second best token each time, by the public operations alone."""

    def __call__(self, decoder, state, ops, transform, stopping, budget, n):
        rows, slots = state.tokens.shape
        width = state.prompt_width
        tokens, raw = [], []
        for _ in range(budget):
            scores = transform(state, decoder.logits)
            chosen = jax.lax.top_k(scores, 2)[1][:, 1]
            raw.append(jnp.take_along_axis(jax.nn.log_softmax(decoder.logits), chosen[:, None], axis=1)[:, 0])
            tokens.append(chosen)
            decoder, _ = ops.extend(decoder, chosen[:, None], jnp.ones((rows, 1), bool))
        drawn = jnp.zeros((rows, slots - width), jnp.int32).at[:, :budget].set(jnp.stack(tokens, axis=1))
        likely = jnp.zeros(drawn.shape).at[:, :budget].set(jnp.stack(raw, axis=1))
        every = jnp.full(rows, budget)
        return ops.repeat(
            Draws(drawn, every, every > budget, 0 * likely, likely, jnp.zeros(rows, jnp.int32)), n
        )


def test_a_strategy_of_ones_own_decodes_by_the_public_operations():
    table = np.asarray(VARIABLES["params"]["table"])
    drawn = generate(Chain(), VARIABLES, [[0, 1], [2, 3]], 5, seed=0, n=2, strategy=SecondBest())
    for row, start in enumerate([1, 1, 3, 3]):
        path = [start]
        for _ in range(5):
            path.append(int(np.argsort(-table[path[-1]])[1]))
        assert drawn.tokens[row, 2:].tolist() == path[1:]
    logs = np.asarray(jax.nn.log_softmax(VARIABLES["params"]["table"]))
    steps = np.asarray(drawn.tokens)
    np.testing.assert_allclose(drawn.raw_log_probs, logs[steps[:, 1:-1], steps[:, 2:]], rtol=1e-5)
    assert not drawn.terminated.any()


def test_a_strategy_may_wrap_another():
    def halved(decoder, state, ops, transform, stopping, budget, n):
        return Sample()(decoder, state, ops, transform, stopping, budget // 2, n)

    drawn = generate(Chain(), VARIABLES, [[0]], 8, seed=3, n=3, strategy=halved)
    whole = generate(Chain(), VARIABLES, [[0]], 8, seed=3, n=3)
    assert drawn.lengths.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(drawn.tokens[:, :5], whole.tokens[:, :5])


def test_a_strategys_own_check_refuses_before_compiling():
    class Fussy(SecondBest):
        def policy_chain(self, sampling):
            return (lambda state, logits: logits,)

        def check(self, model, *, n, chain, criteria):
            raise ValueError(f"{model.vocab_size} {n} {len(chain)} {len(criteria)}")

    with pytest.raises(ValueError, match="5 2 1 1"):
        generate(Chain(), VARIABLES, [[0]], 8, seed=0, n=2, sampling=Sampling(eos_id=4), strategy=Fussy())


def test_what_is_no_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy=3 is no decoding strategy"):
        generate(Chain(), VARIABLES, [[0]], 8, seed=0, strategy=3)


def test_the_continuations_of_a_prompt_share_its_reading():
    calls = []

    class Counted(Chain):
        def decode(self, tokens, positions, valid, cache):
            jax.debug.callback(lambda: calls.append(tokens.shape[1]))
            return super().decode(tokens, positions, valid, cache)

    generate(Counted(), VARIABLES, [[0, 1, 2]], 4, seed=0, n=3)
    jax.effects_barrier()
    assert calls == [16] + 3 * [1, 1, 1]


def ops_and_state():
    from dew.sampling.text import Decoding

    request = Decoding.prepare(Chain(), VARIABLES, [[0, 1], [2, 3], [4, 4]], 6, seed=0)
    return request.ops, request.decoder


def test_a_kept_state_is_a_saved_cache():
    ops, start = ops_and_state()
    tokens = jnp.asarray([[1, 2, 3], [3, 2, 1], [0, 0, 0]])
    kept = jnp.asarray([[True, True, False], [True, False, False], [False, False, False]])
    tried, _ = ops.extend(start, tokens, jnp.ones((3, 3), bool))
    replayed, _ = ops.extend(start, tokens, kept)
    assert tried.lengths.tolist() == [5, 5, 5]
    assert replayed.lengths.tolist() == [4, 3, 2]
    assert replayed.cache[:, :6].tolist() == [[0, 1, 1, 2, -1, -1], [2, 3, 3, -1, -1, -1], [4, 4] + 4 * [-1]]
    # A row that read nothing stays as it was; the others stand behind their last valid token.
    np.testing.assert_array_equal(replayed.logits[2], start.logits[2])
    np.testing.assert_array_equal(replayed.logits[:2], VARIABLES["params"]["table"][jnp.asarray([2, 3])])


def test_rows_continue_from_others_of_their_group():
    ops, start = ops_and_state()
    beams = ops.repeat(start, 2)
    beams, _ = ops.extend(beams, jnp.arange(6)[:, None] % 5, jnp.ones((6, 1), bool))
    moved = ops.reparent(beams, jnp.asarray([[1, 1], [0, 1], [1, 0]]))
    order = [1, 1, 2, 3, 5, 4]
    jax.tree.map(lambda new, old: np.testing.assert_array_equal(new, old[jnp.asarray(order)]), moved, beams)
    fewer = ops.reparent(beams, jnp.asarray([[1], [0], [1]]))
    np.testing.assert_array_equal(fewer.cache, beams.cache[jnp.asarray([1, 2, 5])])


def test_strategies_compare_by_value():
    assert Speculative(block=3) == Speculative(block=3) != replace(Speculative(block=3), confidence=0.5)
    assert hash(Sample()) == hash(Sample())
