"""The language-model objective: which targets count, what is scored, what is kept and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.artifacts import TokenScores
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step, scalar_loss, thaw, under
from dew.objectives.lm import LMObjective, Samples
from dew.sampling import Sampling
from dew.training import MeshSpec, Trainer

LENGTH = 11
MODEL = CausalTransformer(
    vocab_size=31,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    max_seq_len=16,
    precision="highest",
)
VARIABLES = jax.tree.map(
    lambda leaf: 2.0 * leaf, unboxed(MODEL.init(jax.random.key(2), jnp.zeros((1, 1), jnp.int32)))
)
TOKENS = np.random.default_rng(6).integers(1, 31, (3, LENGTH + 1)).astype(np.int32)
APPLY = jax.jit(MODEL.apply)
STEP = Step(step=0, key=jax.random.key(0))


def objective(**fields):
    return LMObjective(MODEL, LENGTH, **fields)


def log_probs(tokens, variables=VARIABLES, temperature=1.0):
    """Next-token log likelihoods in float64, from the model's own logits."""
    logits = np.asarray(APPLY(variables, tokens[:, :-1]), np.float64) / temperature
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(normal, np.asarray(tokens)[:, 1:, None], -1)[..., 0]


def test_the_loss_is_the_summed_cross_entropy_over_the_count_of_targets():
    stats, aux = jax.jit(objective().loss)(VARIABLES, {"text": TOKENS}, STEP)
    assert float(stats.mass) == 3 * LENGTH
    assert float(stats.total) == pytest.approx(-log_probs(TOKENS).sum(), rel=1e-5)
    best = np.argmax(MODEL.apply(VARIABLES, TOKENS[:, :-1]), -1) == TOKENS[:, 1:]
    assert float(aux.metrics["token_accuracy"]) == pytest.approx(best.mean())


def test_padding_targets_do_not_count():
    tokens = TOKENS.copy()
    tokens[0, 6:] = 0
    stats, _ = jax.jit(objective(pad_id=0).loss)(VARIABLES, {"text": tokens}, STEP)
    weights = tokens[:, 1:] != 0
    assert float(stats.mass) == weights.sum() == 3 * LENGTH - 6
    assert float(stats.total) == pytest.approx(-(log_probs(tokens) * weights).sum(), rel=1e-5)


def test_statistics_of_halves_add_up_to_those_of_the_whole():
    parts = [
        jax.jit(objective().loss)(VARIABLES, {"text": rows}, STEP)[0] for rows in (TOKENS[:1], TOKENS[1:])
    ]
    whole, _ = jax.jit(objective().loss)(VARIABLES, {"text": TOKENS}, STEP)
    assert sum(float(part.total) for part in parts) == pytest.approx(float(whole.total), rel=1e-6)
    assert sum(float(part.mass) for part in parts) == float(whole.mass)


def test_a_batch_without_a_counted_target_has_no_data_and_no_gradient():
    batch = {"text": np.zeros_like(TOKENS)}
    stats, aux = jax.jit(objective(pad_id=0, z_loss=0.1).loss)(VARIABLES, batch, STEP)
    value, active = objective().reduce_loss(stats)
    assert (float(value), bool(active), float(aux.metrics["token_accuracy"])) == (0.0, False, 0.0)
    gradient = jax.jit(jax.grad(lambda v: scalar_loss(objective(pad_id=0), v, batch, STEP)[0]))(VARIABLES)
    assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradient))


def packed_batch():
    """Documents of 5 and 4 tokens in one row, then three tokens of padding."""
    tokens = np.concatenate([TOKENS[0, :5], TOKENS[1, :4], np.zeros(3, np.int32)])[None]
    segments = np.repeat([1, 2, 0], [5, 4, 3])[None]
    positions = np.concatenate([np.arange(5), np.arange(4), np.arange(3)])[None]
    return {"text": tokens, "text_segment_ids": segments, "text_positions": positions}


def padded_batch():
    tokens = np.zeros((2, LENGTH + 1), np.int32)
    tokens[0, :5], tokens[1, :4] = TOKENS[0, :5], TOKENS[1, :4]
    return {"text": tokens}


def test_the_last_token_of_a_document_does_not_predict_the_next_document():
    batch = packed_batch()
    scores = objective().token_scores(
        VARIABLES, batch["text"], segment_ids=batch["text_segment_ids"], positions=batch["text_positions"]
    )
    assert scores.weights.tolist() == [[1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0]]


def test_packed_and_padded_rows_train_the_same():
    def trained(batch, pad_id):
        def loss(variables):
            stats, _ = objective(pad_id=pad_id, z_loss=0.1).loss(variables, batch, STEP)
            return stats.total, stats.mass

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(VARIABLES)

    (packed, packed_mass), packed_gradient = trained(packed_batch(), None)
    (padded, padded_mass), padded_gradient = trained(padded_batch(), 0)
    assert float(packed_mass) == float(padded_mass) == 4 + 3
    assert float(packed) == pytest.approx(float(padded), rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), packed_gradient, padded_gradient
    )


def test_a_packed_row_scores_every_document_as_it_scores_it_alone():
    batch = packed_batch()
    scores = objective().token_scores(
        VARIABLES, batch["text"], segment_ids=batch["text_segment_ids"], positions=batch["text_positions"]
    )
    alone = [-log_probs(TOKENS[row, :length][None])[0] for row, length in ((0, 5), (1, 4))]
    np.testing.assert_allclose(scores.losses[0][scores.weights[0] > 0], np.concatenate(alone), rtol=1e-5)


def test_z_loss_adds_the_squared_log_partition_of_counted_targets():
    tokens = TOKENS.copy()
    tokens[0, 6:] = 0
    weights = tokens[:, 1:] != 0

    def plain(variables):
        logits = MODEL.apply(variables, tokens[:, :-1])
        squared = jnp.square(jax.scipy.special.logsumexp(logits, axis=-1))
        targets = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)[..., 0]
        return jnp.sum((0.3 * squared - targets) * weights) / weights.sum()

    def ours(variables):
        return scalar_loss(objective(pad_id=0, z_loss=0.3), variables, {"text": tokens}, STEP)[0]

    assert float(ours(VARIABLES)) == pytest.approx(float(plain(VARIABLES)), rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4),
        jax.jit(jax.grad(ours))(VARIABLES),
        jax.jit(jax.grad(plain))(VARIABLES),
    )


def test_left_padded_rows_score_as_their_text_alone():
    padding = np.array([0, 3, 5])
    padded = np.zeros((3, LENGTH + 1), np.int32)
    for row, count in enumerate(padding):
        padded[row, count:] = TOKENS[row, : LENGTH + 1 - count]
    got = jax.jit(objective().per_token_log_probs)(VARIABLES, padded, left_padding=jnp.asarray(padding))
    for row, count in enumerate(padding):
        assert got[row, :count].tolist() == [0.0] * count
        alone = log_probs(TOKENS[row : row + 1, : LENGTH + 1 - count])[0]
        np.testing.assert_allclose(got[row, count:], alone, atol=1e-5, rtol=1e-5)


def test_sampled_likelihoods_divide_the_logits_by_the_temperature():
    scores = objective().token_scores(VARIABLES, TOKENS)
    raw = objective().sampled_log_probs(VARIABLES, scores, TOKENS)
    np.testing.assert_allclose(raw, log_probs(TOKENS), rtol=1e-4, atol=1e-5)
    cold = objective().sampled_log_probs(VARIABLES, scores, TOKENS, temperature=0.5)
    np.testing.assert_allclose(cold, log_probs(TOKENS, temperature=0.5), rtol=1e-4, atol=1e-5)


def test_predict_returns_the_loss_with_every_logit_behind_it():
    stats, _, prediction = objective(pad_id=0).predict(VARIABLES, packed_batch(), STEP, train=False)
    expected, _ = jax.jit(objective(pad_id=0).loss)(VARIABLES, packed_batch(), STEP)
    assert float(stats.total) == pytest.approx(float(expected.total), rel=1e-6)
    assert prediction.logits.shape == (1, LENGTH, 31)
    assert float((prediction.losses * prediction.weights).sum()) == pytest.approx(
        float(stats.total), rel=1e-6
    )
    share = jax.nn.log_softmax(prediction.logits)
    losses = -np.take_along_axis(np.asarray(share), packed_batch()["text"][:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(prediction.losses, losses, atol=1e-5, rtol=1e-5)


def test_evaluation_reads_the_average_where_there_is_one():
    average = jax.tree.map(lambda leaf: 0.5 * leaf, VARIABLES)
    scored = objective().evaluate(VARIABLES, {"text": TOKENS}, Step(step=0, key=STEP.key, ema=average))
    assert isinstance(scored, TokenScores)
    np.testing.assert_allclose(scored.losses, -log_probs(TOKENS, average), rtol=1e-4, atol=1e-5)


def test_the_average_follows_the_parameters_at_the_given_decay():
    kept = objective(ema_decay=0.9).ema
    assert kept.decay(7) == pytest.approx(0.9)
    assert kept.select(("params", "norm", "scale")) and not kept.select(("frozen", "norm", "scale"))
    assert objective(ema_decay=None).ema is None


def test_accuracy_can_be_left_out():
    _, aux = jax.jit(objective(token_accuracy=False).loss)(VARIABLES, {"text": TOKENS}, STEP)
    assert dict(aux.metrics) == {}
    assert objective(token_accuracy=False).evaluate(VARIABLES, {"text": TOKENS}, STEP).correct is None


def test_only_the_trainable_leaves_stay_in_params():
    only_norm = objective(trainable=under("params", "norm"))
    split = unboxed(only_norm.init(jax.random.key(2)))
    assert list(split["params"]) == ["norm"]
    whole = unboxed(objective().init(jax.random.key(2)))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), thaw(split), whole))
    stats, _ = jax.jit(only_norm.loss)(split, {"text": TOKENS}, STEP)
    assert float(stats.total) == pytest.approx(
        float(jax.jit(objective().loss)(whole, {"text": TOKENS}, STEP)[0].total)
    )


def test_pretrained_variables_are_started_from_and_keep_their_axis_names():
    started = objective(pretrained=VARIABLES)
    boxed = started.initializer(jax.random.key(9))
    assert boxed["params"]["lm_head"]["kernel"].names == ("embed", "vocab")
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), unboxed(boxed), VARIABLES)
    assert jax.tree.all(equal)


def test_pretrained_variables_of_another_shape_are_refused_by_path():
    wrong = {"params": {**VARIABLES["params"], "norm": {"scale": jnp.ones(4)}}}
    with pytest.raises(ValueError, match=r"shape \(4,\) at params/norm/scale, .* shape \(16,\)"):
        objective(pretrained=wrong).init(jax.random.key(0))


def test_units_are_the_predicted_tokens():
    assert objective().unit == "tokens"
    assert objective().count_units({"text": TOKENS}) == 3 * LENGTH
    assert objective().inputs.sample.shape == (LENGTH + 1,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_chunks": 0}, "head_chunks=0"),
        ({"z_loss": -1.0}, r"z_loss=-1\.0"),
        ({"ema_decay": 1.5}, r"ema_decay=1\.5"),
    ],
)
def test_numbers_out_of_range_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        objective(**fields)


def test_a_model_that_looks_ahead_or_is_too_short_is_refused():
    with pytest.raises(ValueError, match="causal=False"):
        LMObjective(MODEL.clone(causal=False), LENGTH)
    with pytest.raises(ValueError, match="seq_len=17 must lie between 1 and the model's max_seq_len=16"):
        LMObjective(MODEL, 17)


def test_rows_of_another_length_are_refused():
    with pytest.raises(ValueError, match="rows of 11 ids; seq_len=11 needs 12"):
        jax.jit(objective().loss)(VARIABLES, {"text": TOKENS[:, :-1]}, STEP)


def trained(subject):
    """The state of `subject` before its first step, the average set to zeros."""
    state = Trainer(subject, optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    return state.replace(ema=None if state.ema is None else jax.tree.map(jnp.zeros_like, state.ema))


def test_the_task_of_a_state_takes_the_average_or_the_live_weights_and_samples_as_the_previews():
    policy = Sampling(temperature=0.3, top_k=2)
    subject = objective(samples=Samples([1, 2], 3, policy))
    state = trained(subject)
    averaged, live = subject.pipeline(state), subject.pipeline(state, ema=False)
    assert not any(leaf.any() for leaf in jax.tree.leaves(averaged.variables))
    jax.tree.map(np.testing.assert_array_equal, live.variables, state.params)
    assert (averaged.sampling, averaged.max_new_tokens) == (policy, 3)


def test_an_average_that_is_not_kept_is_refused_as_a_task():
    subject = objective(ema_decay=None)
    state = trained(subject)
    with pytest.raises(ValueError, match="keeps no moving average"):
        subject.pipeline(state)
    assert subject.pipeline(state, ema=False).max_new_tokens is None


def test_a_policy_binds_the_given_weights_whole():
    subject = objective(trainable=under("params", "lm_head"))
    bound = subject.policy(subject.init(jax.random.key(1)))
    assert set(bound.variables) == {"params"} and bound.sampling == Sampling()


def test_a_sequence_axis_that_does_not_cut_the_rows_is_refused_with_the_trainer():
    model = CausalTransformer(vocab_size=8, hidden_size=8, num_layers=1, num_heads=2, max_seq_len=16)
    with pytest.raises(ValueError, match=r"seq_len=9 must be a multiple of mesh\.sequence=4.*use 8 or 12"):
        Trainer(LMObjective(model, 9), optax.sgd(0.1), key=jax.random.key(0), mesh=MeshSpec(sequence=4))
