"""Prediction depths: their states and their loss against NumPy, packed rows, masses, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.sharding import unboxed
from dew.objectives.base import Mean, Step, scalar_loss
from dew.objectives.lm import LMObjective
from dew.objectives.lm.depths import DepthStatistics
from dew.testing.devices import result_on_devices

SIZES = {
    "vocab_size": 17,
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "intermediate_size": 12,
    "max_seq_len": 32,
    "precision": "highest",
}
MODEL = CausalTransformer(**SIZES, num_nextn_predict_layers=2)
LENGTH = 9
TOKENS = np.random.default_rng(4).integers(1, 17, (3, LENGTH + 1)).astype(np.int32)
STEP = Step(step=0, key=jax.random.key(0))


def drawn(model, scale=3.0):
    """Variables far from their start, norms included."""
    tree = unboxed(model.init(jax.random.key(1), jnp.zeros((1, 1), jnp.int32)))
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    noise = [0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(
        structure,
        [leaf * (scale if leaf.ndim > 1 else 1) + each for leaf, each in zip(leaves, noise, strict=True)],
    )


VARIABLES = drawn(MODEL)


def rms(x, scale):
    return scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def rotated(x, positions):
    """Pairs of coordinates i and i + 2 of a head of 4, turned by position / 10000^(2 i / 4)."""
    angles = positions[:, None, None] * 10000.0 ** (-np.arange(2) / 2)
    low, high = x[..., :2], x[..., 2:]
    return np.concatenate(
        [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], -1
    )


def layer(x, held, positions):
    """A decoder layer over `x` [T, 8], every entry of which sees itself and those before it."""
    normed = rms(x, held["input_layernorm"]["scale"])
    query, key, value = (
        (normed @ held["self_attn"][name]["kernel"]).reshape(len(x), -1, 4)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    query, key = rotated(query, positions), rotated(key, positions)
    mixed = np.zeros((len(x), 2, 4))
    for head in range(2):
        scores = query[:, head] @ key[:, 0].T / 2.0
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, head] = weights / weights.sum(-1, keepdims=True) @ value[:, 0]
    x = x + mixed.reshape(len(x), 8) @ held["self_attn"]["o_proj"]["kernel"]
    normed = rms(x, held["post_attention_layernorm"]["scale"])
    gate, up = normed @ held["mlp"]["gate_proj"]["kernel"], normed @ held["mlp"]["up_proj"]["kernel"]
    return x + (gate / (1 + np.exp(-gate)) * up) @ held["mlp"]["down_proj"]["kernel"]


def cross_entropy(states, targets, held):
    logits = states @ held["lm_head"]["kernel"]
    top = logits.max(-1)
    return np.log(np.exp(logits - top[:, None]).sum(-1)) + top - logits[np.arange(len(targets)), targets]


def losses_by_hand(tokens, variables=VARIABLES):
    """Cross entropies of a document: the decoder's, depth 1's and depth 2's, in float64 by the equations."""
    held = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    read, targets = tokens[:-1], tokens[1:]
    embedded = held["embed_tokens"]["embedding"][read]
    positions = np.arange(len(read))
    states = rms(layer(embedded, held["layers_0"], positions), held["norm"]["scale"])
    found = [cross_entropy(states, targets, held)]
    for depth in (1, 2):
        own = held[f"depths_{depth - 1}"]
        # One entry fewer at every depth: the first token has no predecessor's state.
        embedded, positions, targets, before = embedded[1:], positions[1:], targets[1:], states[:-1]
        halves = [rms(embedded, own["enorm"]["scale"]), rms(before, own["hnorm"]["scale"])]
        x = np.concatenate(halves, axis=-1) @ own["eh_proj"]["kernel"]
        states = rms(layer(x, own["block"], positions), own["norm"]["scale"])
        found.append(cross_entropy(states, targets, held))
    return found


def objective(model=MODEL, **fields):
    return LMObjective(model, LENGTH, token_accuracy=False, **fields)


def test_the_loss_of_both_depths_is_that_of_the_papers_equations():
    scores = jax.jit(lambda: objective().token_scores(VARIABLES, TOKENS, depths=True))()
    for row, tokens in enumerate(TOKENS):
        plain, first, second = losses_by_hand(tokens)
        np.testing.assert_allclose(scores.losses[row], plain, rtol=2e-5)
        np.testing.assert_allclose(scores.depths.losses[0, row, 1:], first, rtol=2e-5)
        np.testing.assert_allclose(scores.depths.losses[1, row, 2:], second, rtol=2e-5)
    assert scores.depths.weights[0].tolist() == [[0] + [1] * 8] * 3
    assert scores.depths.weights[1].tolist() == [[0, 0] + [1] * 7] * 3


def test_the_term_is_the_weighted_mean_of_the_depths_own_means():
    training = objective(mtp_weight=0.3)
    stats, aux = jax.jit(training.loss)(VARIABLES, {"text": TOKENS}, STEP)
    value, active = training.reduce_loss(stats)
    by_hand = [losses_by_hand(tokens) for tokens in TOKENS]
    plain, first, second = (np.mean([row[depth] for row in by_hand]) for depth in range(3))
    assert bool(active)
    assert float(value) == pytest.approx(plain + 0.3 * (first + second) / 2, rel=1e-5)
    assert float(aux.metrics["mtp_loss"]) == pytest.approx((first + second) / 2, rel=1e-5)
    assert stats.depths.mass.tolist() == [3 * (LENGTH - 1), 3 * (LENGTH - 2)]


def packed():
    """Documents of 5, 2 and 1 tokens and two of padding in one row."""
    tokens = np.concatenate([TOKENS[0, :5], TOKENS[1, :2], TOKENS[2, :1], [0, 0]]).astype(np.int32)[None]
    segments = np.repeat([1, 2, 3, 0], [5, 2, 1, 2])[None]
    positions = np.concatenate([np.arange(5), np.arange(2), np.arange(1), np.arange(2)])[None]
    return {"text": tokens, "text_segment_ids": segments, "text_positions": positions}


def test_a_depth_never_predicts_across_documents():
    batch = packed()
    scores = objective().token_scores(
        VARIABLES,
        batch["text"],
        segment_ids=batch["text_segment_ids"],
        positions=batch["text_positions"],
        depths=True,
    )
    # Of a document of n tokens depth k predicts n - 1 - k.
    assert scores.depths.weights[0, 0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert scores.depths.weights[1, 0].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0]
    _, first, second = losses_by_hand(TOKENS[0, :5])
    np.testing.assert_allclose(scores.depths.losses[0, 0, 1:4], first, rtol=2e-5)
    np.testing.assert_allclose(scores.depths.losses[1, 0, 2:4], second, rtol=2e-5)


def test_editing_another_document_moves_no_depth():
    batch = packed()
    others = {**batch, "text": np.where(batch["text_segment_ids"] == 1, 3, batch["text"]).astype(np.int32)}
    rest = np.concatenate([TOKENS[1, :4], [2, 5, 7]])
    for each in (batch, others):
        each["text"] = np.concatenate([each["text"][:, :3], rest[None]], axis=1).astype(np.int32)
        each["text_segment_ids"] = np.repeat([1, 2], [3, 7])[None]
        each["text_positions"] = np.concatenate([np.arange(3), np.arange(7)])[None]
    kept = [
        objective().token_scores(
            VARIABLES,
            each["text"],
            segment_ids=each["text_segment_ids"],
            positions=each["text_positions"],
            depths=True,
        )
        for each in (batch, others)
    ]
    np.testing.assert_array_equal(kept[0].depths.losses[0, 0, 4:], kept[1].depths.losses[0, 0, 4:])
    np.testing.assert_array_equal(kept[0].depths.losses[1, 0, 5:], kept[1].depths.losses[1, 0, 5:])


def test_statistics_add_over_microbatches_and_divide_once():
    training = objective(mtp_weight=0.5)
    loss = jax.jit(training.loss)
    rows = [packed(), packed()]
    rows[1]["text"] = np.roll(rows[1]["text"], 1, axis=1)
    whole = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    parts = [loss(VARIABLES, row, STEP)[0] for row in rows]
    summed = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    together = loss(VARIABLES, whole, STEP)[0]
    assert float(training.reduce_loss(summed)[0]) == pytest.approx(
        float(training.reduce_loss(together)[0]), rel=1e-6
    )


def test_the_depths_and_the_decoder_learn_from_the_term():
    def gradient(weight):
        training = objective(mtp_weight=weight)
        return jax.jit(jax.grad(lambda held: scalar_loss(training, held, {"text": TOKENS}, STEP)[0]))(
            VARIABLES
        )

    with_term, without = gradient(0.3)["params"], gradient(0.0)["params"]
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(with_term["depths_1"]))
    assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(without["depths_0"]))
    assert (
        float(
            jnp.abs(
                with_term["layers_0"]["mlp"]["up_proj"]["kernel"]
                - without["layers_0"]["mlp"]["up_proj"]["kernel"]
            ).max()
        )
        > 1e-3
    )


def test_logits_do_not_depend_on_the_depths():
    bare = CausalTransformer(**SIZES)
    held = {"params": {name: leaf for name, leaf in VARIABLES["params"].items() if "depths" not in name}}
    np.testing.assert_array_equal(MODEL.apply(VARIABLES, TOKENS), bare.apply(held, TOKENS))


def test_cached_depths_equal_those_of_the_whole_row():
    hidden = MODEL.apply(VARIABLES, TOKENS, method="hidden_states")
    whole = MODEL.apply(VARIABLES, TOKENS, hidden, method="mtp_hidden_states")
    previous = hidden
    for depth in (1, 2):
        cache = MODEL.init_mtp_cache(3, 16)
        states = []
        for start, stop in ((0, 4), (4, 5), (5, 10)):
            positions = jnp.broadcast_to(jnp.arange(start, stop), (3, stop - start))
            before = jnp.pad(previous, ((0, 0), (1, 0), (0, 0)))[:, start:stop]
            state, cache = MODEL.apply(
                VARIABLES,
                depth,
                TOKENS[:, start:stop],
                before,
                positions,
                positions >= depth,
                cache,
                method="mtp_decode",
            )
            states.append(state)
        previous = whole[depth - 1]
        cached = jnp.concatenate(states, axis=1)
        np.testing.assert_allclose(cached[:, depth:], previous[:, depth:], atol=2e-5)


def test_experts_of_a_depth_balance_with_the_others():
    model = CausalTransformer(
        **SIZES, num_nextn_predict_layers=1, mixture=Mixture(num_experts=4, top_k=2, bias=True)
    )
    training = objective(model, mtp_weight=0.1, balance_rate=0.01, aux_loss_alpha=0.01)
    stats, aux = jax.jit(training.loss)(drawn(model), {"text": TOKENS}, STEP)
    assert isinstance(stats, DepthStatistics) and isinstance(stats.depths, Mean)
    counts = aux.effects["depths_0"]["block"]["mlp"]["gate"]["bias"]
    assert int(counts.sum()) > 0


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: objective(CausalTransformer(**SIZES), mtp_weight=0.3), "mtp_weight=0.3 trains prediction"),
        (lambda: objective(mtp_weight=-1.0), "mtp_weight=-1.0 must be 0 or more"),
        (lambda: MODEL.clone(num_nextn_predict_layers=-1), "num_nextn_predict_layers=-1"),
        (lambda: MODEL.clone(causal=False), "needs causal=True"),
        (
            lambda: objective(CausalTransformer(**SIZES)).token_scores({}, TOKENS, depths=True),
            "depths=True needs a model with prediction depths",
        ),
        (
            lambda: objective(mtp_weight=0.3).predict(VARIABLES, {"text": TOKENS}, STEP, train=True),
            "mtp_weight adds their loss",
        ),
    ],
)
def test_what_has_no_depths_is_refused(build, named):
    with pytest.raises(ValueError, match=named):
        build()


def test_model_flops_count_the_depths_where_they_are_trained():
    batch = {"text": TOKENS}
    plain, deep = objective().step_cost(batch), objective(mtp_weight=0.3).step_cost(batch)
    # A layer: attention 8 (8 + 4 + 4 + 8), feed-forward 3 (8 12), the halves 16 8, the head 8 17.
    weights = 8 * 24 + 3 * 96 + 128 + 136
    keys = 2 * 2 * 4 * (LENGTH * (LENGTH + 1) // 2)
    assert deep.flops - plain.flops == 6 * 3 * 2 * (LENGTH * weights + keys)


def test_a_depth_costs_what_the_last_layer_does():
    """Of two layers the last sees four keys; a depth takes its window and no other layer's."""
    model = MODEL.clone(
        num_layers=2, num_nextn_predict_layers=1, sliding_window=4, sliding_layers=(False, True)
    )
    batch = {"text": TOKENS}
    plain, deep = objective(model).step_cost(batch), objective(model, mtp_weight=0.3).step_cost(batch)
    weights = 8 * 24 + 3 * 96 + 128 + 136
    keys = 2 * 2 * 4 * sum(min(index + 1, 4) for index in range(LENGTH))
    assert deep.flops - plain.flops == 6 * 3 * (LENGTH * weights + keys)


@pytest.mark.slow
def test_depths_train_alike_however_eight_devices_are_cut():
    apart = result_on_devices(str(Path(__file__).with_name("depths_on_eight.py")))
    assert set(apart) == {"fsdp and tensor", "sequence", "stage"}
    assert max(apart.values()) < 2e-6
