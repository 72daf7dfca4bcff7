"""Speculative decoding: its law, its equality with `Sample`, blocks, caches, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.inputs import ModelInputs
from dew.nn.sharding import unboxed
from dew.sampling import Sampling, Speculative, generate
from dew.sampling.decoding import Greedy, Temperature
from dew.sampling.text import Decoding, speculative_block
from dew.sampling.text.verification import acceptance, accepted_prefix, residual


class Chain(nn.Module):
    """A Markov chain whose depths believe in chains of their own: each table's row i follows token i."""

    vocab_size: int = 4
    num_nextn_predict_layers: int = 3
    max_seq_len: int = 64

    def setup(self):
        self.tables = self.param("tables", nn.initializers.zeros, (4, self.vocab_size, self.vocab_size))

    def init_cache(self, rows, capacity):
        return {"seen": jnp.zeros((rows, capacity), jnp.int32)}

    init_mtp_cache = init_cache

    def head_weight(self, params):
        return jnp.eye(self.vocab_size)

    def decode(self, tokens, positions, valid, cache):
        rows = jnp.arange(tokens.shape[0])[:, None]
        slots = jnp.where(valid, positions, cache["seen"].shape[1])
        return self.tables[0][tokens], {"seen": cache["seen"].at[rows, slots].set(tokens, mode="drop")}

    def mtp_decode(self, depth, tokens, previous, positions, valid, cache):
        return self.tables[depth][tokens], cache


def chains(seed=0, spread=1.5):
    """The model's table and three depths that are wrong about it."""
    tables = spread * np.random.default_rng(seed).normal(size=(4, 4, 4))
    return Chain(), {"params": {"tables": jnp.asarray(tables, jnp.float32)}}


def laws(variables, temperature=1.0):
    return np.asarray(jax.nn.softmax(variables["params"]["tables"][0] / temperature, axis=-1), np.float64)


@pytest.fixture(scope="module")
def decoder():
    model = CausalTransformer(
        vocab_size=37,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
        max_seq_len=96,
        sliding_window=6,
        sliding_layers=(False, True),
        num_nextn_predict_layers=3,
        precision="highest",
    )
    variables = unboxed(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    return model, jax.tree.map(lambda leaf: 2.0 * leaf, variables)


def ragged():
    tokens = np.random.default_rng(0).integers(1, 37, (4, 7)).astype(np.int32)
    return ModelInputs(tokens, {"attention_mask": np.arange(7) >= 7 - np.asarray([1, 7, 2, 5])[:, None]})


def chi_square(seen, law):
    live = law > 0
    assert seen[~live].sum() == 0
    expected = seen.sum() * law[live]
    return np.sum((seen[live] - expected) ** 2 / expected)


def test_kept_and_replaced_proposals_are_distributed_as_the_target():
    generator = np.random.default_rng(1)
    with jax.enable_x64(True):
        for _ in range(20):
            target, draft = (jnp.asarray(np.log(generator.dirichlet([0.4] * 6))) for _ in range(2))
            every = jnp.arange(6)
            tiled = jnp.broadcast_to(target, (6, 6)), jnp.broadcast_to(draft, (6, 6))
            chances = acceptance(*tiled, every)
            kept = jnp.exp(draft) * chances
            emitted = kept + (1 - kept.sum()) * jnp.exp(residual(target, draft))
            np.testing.assert_allclose(emitted, jnp.exp(target), atol=1e-12)


def test_the_published_case():
    target, draft = (jnp.log(jnp.asarray(law)) for law in ([0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]))
    chances = acceptance(jnp.tile(target, (4, 1)), jnp.tile(draft, (4, 1)), jnp.arange(4))
    np.testing.assert_allclose(jnp.sum(jnp.exp(draft) * chances), 0.5, rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(residual(target, draft)), [0.8, 0.2, 0, 0], atol=1e-6)


def test_equal_distributions_leave_no_residual_and_fall_back_to_the_target():
    law = jnp.log(jnp.asarray([0.5, 0.5, 0.0]))
    np.testing.assert_array_equal(residual(law, law), law)


def test_a_run_of_kept_proposals_ends_at_the_first_that_is_not():
    chances = jnp.asarray([[0.5, 0.5, 0.5]] * 4)
    uniforms = jnp.asarray([[0.1, 0.1, 0.1], [0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.1]])
    offered = jnp.asarray([[True] * 3, [True] * 3, [True] * 3, [True, False, True]])
    assert accepted_prefix(chances, offered, uniforms).tolist() == [3, 0, 1, 1]
    # A chance of exactly 0 is never taken.
    assert accepted_prefix(jnp.zeros((1, 1)), jnp.ones((1, 1), bool), jnp.zeros((1, 1))).tolist() == [0]


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        (Speculative(block=4), Sampling()),
        (Speculative(block=3), Sampling(temperature=0.7, top_k=3)),
        (Speculative(block=4, confidence=0.5), Sampling(temperature=1.3)),
        (Speculative(block=2), Sampling(top_p=0.8)),
    ],
)
def test_tokens_and_their_pairs_follow_the_models_own_law(strategy, policy):
    count, length = 20_000, 5
    model, variables = chains()
    drawn = generate(
        model, variables, np.zeros((count, 1), np.int32), length, seed=3, sampling=policy, strategy=strategy
    )
    tokens = np.asarray(drawn.tokens)
    state = jnp.zeros((4, 4))
    rows = variables["params"]["tables"][0]
    for transform in policy.transforms():
        rows = transform(state, rows)
    law = np.asarray(jax.nn.softmax(rows, axis=-1), np.float64)
    now = np.eye(4)[0]
    for place in range(1, length):
        joint = (now @ law)[:, None] * law
        pairs = np.bincount(4 * tokens[:, place] + tokens[:, place + 1], minlength=16)
        # The 99.9th percentile of chi-square with 15 degrees of freedom; fewer degrees lie lower.
        assert chi_square(pairs, joint.ravel()) < 37.7, place
        now = now @ law
    taken = np.log(law[tokens[:, :-1], tokens[:, 1:]])
    np.testing.assert_allclose(drawn.behavior_log_probs, taken, atol=5e-6)
    raw = np.log(laws(variables)[tokens[:, :-1], tokens[:, 1:]])
    np.testing.assert_allclose(drawn.raw_log_probs, raw, atol=5e-6)


def test_whole_sequences_follow_the_models_own_law():
    model, variables = chains(seed=2)
    drawn = generate(model, variables, np.zeros((40_000, 1), np.int32), 3, seed=5, strategy=Speculative())
    tokens = np.asarray(drawn.tokens)
    law = laws(variables)
    joint = law[0][:, None, None] * law[:, :, None] * law[None]
    seen = np.bincount(tokens[:, 1] * 16 + tokens[:, 2] * 4 + tokens[:, 3], minlength=64)
    # 99.9th percentile, 63 degrees of freedom.
    assert chi_square(seen, joint.ravel()) < 103.5


@pytest.mark.parametrize("block", [2, 4])
def test_greedy_decoding_is_that_of_sample(decoder, block):
    model, variables = decoder
    policy = Sampling(temperature=0, eos_id=(5, 11), pad_id=0)
    plain = generate(model, variables, ragged(), 23, seed=0, sampling=policy)
    drafted = generate(
        model, variables, ragged(), 23, seed=1, sampling=policy, strategy=Speculative(block=block)
    )
    for name in ("tokens", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(drafted, name), err_msg=name)
    np.testing.assert_allclose(plain.raw_log_probs, drafted.raw_log_probs, atol=2e-5)
    np.testing.assert_array_equal(drafted.behavior_log_probs, 0)


def test_likelihoods_are_those_of_a_full_forward(decoder):
    model, variables = decoder
    inputs = ragged()
    policy = Sampling(temperature=0.7)
    drawn = generate(model, variables, inputs, 20, seed=1, sampling=policy, strategy=Speculative(block=4))
    rows = np.stack(
        [np.roll(row, length - 7) for row, length in zip(drawn.tokens, [1, 7, 2, 5], strict=True)]
    )
    every = jax.jit(model.apply)(variables, rows)
    for row, length in enumerate([1, 7, 2, 5]):
        real = rows[row, : length + 20]
        logits = every[row, length - 1 : length + 19]
        for scale, reported in ((1.0, drawn.raw_log_probs), (0.7, drawn.behavior_log_probs)):
            own = np.asarray(jax.nn.log_softmax(logits / scale))
            expected = np.take_along_axis(own, real[length:, None], axis=1)[:, 0]
            np.testing.assert_allclose(reported[row], expected, atol=1e-4, rtol=0)


def drafting_of(decoder, budget, **fields):
    """The state that blocks leave behind, after at most `budget` tokens of each row."""
    model, variables = decoder
    strategy = Speculative(**fields)
    request = Decoding.prepare(model, variables, ragged(), budget, seed=4, strategy=strategy)
    depths = strategy.block - 1
    start = speculative_block.read_depths(request.ops, request.decoder, request.state, depths=depths)
    carry = (request.transform, request.stopping, np.int32(budget), np.float32(strategy.confidence))
    return speculative_block.draw_blocks(request.ops, start, *carry, block=strategy.block)


def test_caches_after_blocks_are_those_of_the_committed_tokens_alone(decoder):
    model, variables = decoder
    drafting = drafting_of(decoder, 12, block=4)
    tokens, lengths = drafting.carry.state.history()
    tokens, slots = tokens[:, :20], jnp.broadcast_to(jnp.arange(20), (4, 20))
    # A row's last block is not replayed: those before it are what every row has read.
    read = int(drafting.decoder.lengths.min())
    assert read > 4

    @jax.jit
    def at_once():
        decode = (tokens, slots, slots < lengths[:, None], model.init_cache(4, 23))
        states, cache = model.apply(variables, *decode, method="decode")
        found = list(cache.values())
        for depth in (1, 2, 3):
            before = jnp.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            held = (slots, slots >= depth, model.init_mtp_cache(4, 23))
            states, cache = model.apply(variables, depth, tokens, before, *held, method="mtp_decode")
            found.append(cache)
        return found

    kept = [*drafting.decoder.cache.values(), *drafting.caches]
    for depth, (ours, theirs) in enumerate(zip(kept, at_once(), strict=True), start=-1):
        for part in ("key", "value"):
            entries = (..., slice(read - max(depth, 0)))
            # Rounding through three depths, entries up to 8; one wrong token is off by more than 0.1.
            np.testing.assert_allclose(ours[part][entries], theirs[part][entries], atol=3e-4)


def blocks_of(variables, budget, confidence=0.0, **controls):
    """One row of chains after all its blocks of four."""
    strategy = Speculative(block=4, confidence=confidence)
    request = Decoding.prepare(Chain(), variables, [[0]], budget, seed=0, strategy=strategy, **controls)
    start = speculative_block.read_depths(request.ops, request.decoder, request.state, depths=3)
    limits = np.int32(budget), np.float32(confidence)
    return speculative_block.draw_blocks(
        request.ops, start, request.transform, request.stopping, *limits, block=4
    )


def agreeing():
    """Chains whose depths believe what is so."""
    _, variables = chains()
    return {"params": {"tables": jnp.tile(variables["params"]["tables"][:1], (4, 1, 1))}}


def test_blocks_are_at_most_half_the_budget_and_fewer_where_drafts_are_right():
    wrong, right = blocks_of(chains()[1], 30), blocks_of(agreeing(), 30)
    assert 6 < int(wrong.blocks) <= 15
    assert int(right.blocks) == 6
    assert wrong.carry.state.step.tolist() == right.carry.state.step.tolist() == [30]


def test_no_model_call_follows_the_last_rows_end():
    calls = []

    class Counted(Chain):
        def decode(self, tokens, positions, valid, cache):
            jax.debug.callback(lambda count: calls.append(int(count)), tokens.shape[1])
            return super().decode(tokens, positions, valid, cache)

    certain = {"params": {"tables": jnp.tile(100.0 * jnp.eye(4)[jnp.asarray([1, 2, 3, 0])], (4, 1, 1))}}
    policy = Sampling(temperature=0, eos_id=3)
    drawn = generate(
        Counted(), certain, [[0], [1]], 30, seed=0, sampling=policy, strategy=Speculative(block=4)
    )
    jax.effects_barrier()
    assert drawn.lengths.tolist() == [3, 2]
    # The prompt's sixteen slots, then a block of four with its replay.
    assert calls == [16, 4, 5]


def test_an_end_token_inside_a_block_ends_the_row_there():
    order = jnp.asarray([1, 2, 3, 0])
    certain = {"params": {"tables": jnp.tile(100.0 * jnp.eye(4)[order], (4, 1, 1))}}
    policy = Sampling(eos_id=2, pad_id=3)
    drawn = generate(Chain(), certain, [[0], [2]], 7, seed=0, sampling=policy, strategy=Speculative())
    assert drawn.tokens.tolist() == [[0, 1, 2, 3, 3, 3, 3, 3], [2, 3, 0, 1, 2, 3, 3, 3]]
    assert drawn.terminated.tolist() == [True, True]
    np.testing.assert_array_equal(drawn.raw_log_probs[0, 2:], 0)


@pytest.mark.parametrize("budget", [1, 2, 3, 6])
def test_a_budget_inside_a_block_cuts_it(budget):
    model, variables = chains()
    drawn = generate(
        model, variables, [[0], [1]], budget, seed=0, n=2, strategy=Speculative(), sampling=Sampling(pad_id=3)
    )
    assert drawn.lengths.tolist() == [budget] * 4
    assert drawn.tokens.shape == (4, 1 + budget)
    assert drawn.terminated.tolist() == [False] * 4


def test_a_draft_that_is_undefined_is_not_offered():
    model, variables = chains()
    tables = variables["params"]["tables"].at[1:].set(jnp.nan)
    drawn = generate(
        model,
        {"params": {"tables": tables}},
        np.zeros((20_000, 1), np.int32),
        2,
        seed=0,
        strategy=Speculative(block=2),
    )
    tokens = np.asarray(drawn.tokens)
    law = laws(variables)
    pairs = np.bincount(4 * tokens[:, 1] + tokens[:, 2], minlength=16)
    assert chi_square(pairs, (law[0][:, None] * law).ravel()) < 37.7


def test_an_unsure_proposal_is_the_blocks_last():
    # Proposals as likely as the model finds them are all kept: of three, or of the first alone.
    for confidence, blocks in ((0.0, 6), (1.0, 10)):
        found = blocks_of(agreeing(), 30, confidence)
        assert int(found.blocks) == blocks


@pytest.mark.parametrize(("chain", "likely"), [((Greedy(),), 0.7), ((Temperature(0.5), Greedy()), 49 / 52)])
def test_a_greedy_proposal_is_as_sure_as_the_chain_before_its_choice(chain, likely):
    table = jnp.log(0.1 + 0.6 * jnp.roll(jnp.eye(4), 1, axis=1))
    variables = {"params": {"tables": jnp.tile(table, (4, 1, 1))}}
    for confidence, blocks in ((likely - 0.01, 6), (likely + 0.01, 10)):
        assert int(blocks_of(variables, 30, confidence, logits=chain).blocks) == blocks


def test_a_model_without_a_distribution_is_named():
    model, variables = chains()
    tables = variables["params"]["tables"].at[0, 1].set(jnp.nan)
    with pytest.raises(FloatingPointError, match=r"row 1 .* token 0: the model's own logits"):
        generate(model, {"params": {"tables": tables}}, [[0], [1]], 1, seed=0, strategy=Speculative(block=2))


@pytest.mark.parametrize(
    ("strategy", "model", "named"),
    [
        (Speculative(block=5), Chain(), r"block=5\) needs 4 prediction depths, and the model has 3"),
        (Speculative(block=2), Chain(num_nextn_predict_layers=0), "drafts with prediction depths"),
    ],
)
def test_a_model_without_the_depths_is_refused_before_compiling(strategy, model, named):
    _, variables = chains()
    with pytest.raises(ValueError, match=named):
        generate(model, variables, [[0]], 4, seed=0, strategy=strategy)


@pytest.mark.parametrize("fields", [{"block": 1}, {"confidence": 1.5}, {"confidence": -0.1}])
def test_fields_out_of_range_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Speculative(**fields)


@pytest.mark.parametrize(
    "fields", [{"block": True}, {"block": 4.0}, {"confidence": "0.5"}, {"confidence": None}]
)
def test_fields_of_another_kind_are_refused(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        Speculative(**fields)
