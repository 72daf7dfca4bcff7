"""Distillation: the mixed loss by hand, layers by a shorter model, and a teacher that nothing moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import Distillation, FeatureMatch, LMObjective
from dew.training import Trainer

LENGTH, VOCAB = 7, 19
SIZES = dict(vocab_size=VOCAB, hidden_size=8, num_heads=2, intermediate_size=12, max_seq_len=LENGTH)
SMALL = CausalTransformer(**SIZES, num_layers=1, precision="highest")
LARGE = CausalTransformer(**SIZES, num_layers=3, precision="highest")
TOKENS = np.random.default_rng(0).integers(1, VOCAB, (2, LENGTH + 1)).astype(np.int32)
STEP = Step(step=0, key=jax.random.key(0))


def drawn(model, seed):
    return jax.tree.map(
        lambda leaf: 2.0 * leaf, unboxed(model.init(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32)))
    )


STUDENT, TEACHER = drawn(SMALL, 1), drawn(LARGE, 2)


def objective(pad_id=None, **fields):
    teacher = LMObjective(LARGE, LENGTH, pretrained=TEACHER)
    return Distillation(LMObjective(SMALL, LENGTH, pad_id=pad_id, pretrained=STUDENT), teacher, **fields)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_loss_mixes_cross_entropy_and_the_softened_divergence():
    tokens = TOKENS.copy()
    tokens[0, 5:] = 0
    weights = tokens[:, 1:] != 0
    one, other = SMALL.apply(STUDENT, tokens[:, :-1]), LARGE.apply(TEACHER, tokens[:, :-1])
    taken = np.take_along_axis(log_softmax(one), tokens[:, 1:, None], -1)[..., 0]
    known, learned = (
        log_softmax(np.asarray(other, np.float64) / 2),
        log_softmax(np.asarray(one, np.float64) / 2),
    )
    divergence = (np.exp(known) * (known - learned)).sum(-1)
    made = objective(pad_id=0, alpha=0.3, temperature=2.0)
    stats, aux = jax.jit(made.loss)(made.init(jax.random.key(0)), {"text": tokens}, STEP)
    assert float(stats.mass) == weights.sum()
    assert float(stats.total) == pytest.approx(
        (weights * (0.7 * -taken + 0.3 * 4 * divergence)).sum(), rel=1e-5
    )
    assert float(aux.metrics["divergence"]) == pytest.approx(
        (weights * divergence).sum() / weights.sum(), rel=1e-5
    )


def test_a_layer_is_what_a_model_that_ends_there_computes():
    scorer = LMObjective(LARGE, LENGTH)
    states = scorer.token_scores(TEACHER, TOKENS, layers=(2, 0)).layers
    shorter = {
        "params": {
            name: leaf for name, leaf in TEACHER["params"].items() if name not in ("layers_1", "layers_2")
        }
    }
    first = SMALL.apply(shorter, TOKENS[:, :-1], method="hidden_states")
    whole = LARGE.apply(TEACHER, TOKENS[:, :-1], method="hidden_states")
    scale = np.asarray(TEACHER["params"]["norm"]["scale"], np.float64)
    for found, expected in zip(states, (whole, first), strict=True):
        found = np.asarray(found, np.float64)
        normed = scale * found / np.sqrt((found**2).mean(-1, keepdims=True) + LARGE.norm_eps)
        np.testing.assert_allclose(normed, expected, atol=1e-5)


def test_layers_are_kept_when_activations_are_recomputed():
    again = CausalTransformer(**SIZES, num_layers=3, precision="highest", remat=True)
    kept = LMObjective(again, LENGTH).token_scores(TEACHER, TOKENS, layers=(1,)).layers
    plain = LMObjective(LARGE, LENGTH).token_scores(TEACHER, TOKENS, layers=(1,)).layers
    np.testing.assert_allclose(kept[0], plain[0], atol=1e-6)


def test_features_add_the_mean_squared_difference_of_the_pairs():
    made = objective(features=FeatureMatch(student=(0, 0), teacher=(1, 2), weight=0.5))
    plain, _ = objective().loss(objective().init(jax.random.key(0)), {"text": TOKENS}, STEP)
    stats, _ = made.loss(made.init(jax.random.key(0)), {"text": TOKENS}, STEP)
    (own,) = LMObjective(SMALL, LENGTH).token_scores(STUDENT, TOKENS, layers=(0,)).layers
    others = LMObjective(LARGE, LENGTH).token_scores(TEACHER, TOKENS, layers=(1, 2)).layers
    distance = sum(np.square(np.asarray(own) - np.asarray(other)).mean(-1).sum() for other in others) / 2
    assert float(stats.total) == pytest.approx(float(plain.total) + 0.5 * distance, rel=1e-5)


def test_only_the_student_moves_and_it_comes_nearer_to_its_teacher():
    trainer = Trainer(objective(alpha=1.0), optax.sgd(0.5), key=jax.random.key(3))
    state, _, _ = trainer.place()
    compiled = trainer.compile(state, {"text": TOKENS})
    told = []
    for _ in range(12):
        result = compiled(state, {"text": TOKENS})
        state = result.state
        told.append(float(result.metrics["divergence"]))
    assert told[-1] < 0.7 * told[0]
    jax.tree.map(np.testing.assert_array_equal, unboxed(state.params["teacher"]), TEACHER)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 1.5}, r"alpha=1.5 must lie in \[0, 1\]"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        (
            {"features": FeatureMatch(student=(0,), teacher=(9,))},
            "layers names 9, and the model has layers 0 to 2",
        ),
    ],
)
def test_what_cannot_be_distilled_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        made = objective(**fields)
        jax.eval_shape(made.loss, made.init(jax.random.key(0)), {"text": TOKENS}, STEP)


def test_a_teacher_at_its_random_start_is_refused():
    with pytest.raises(ValueError, match="the teacher holds no variables"):
        Distillation(LMObjective(SMALL, LENGTH), LMObjective(LARGE, LENGTH))


def test_other_vocabularies_are_refused():
    other = CausalTransformer(**{**SIZES, "vocab_size": VOCAB + 1}, num_layers=1)
    made = Distillation(LMObjective(SMALL, LENGTH), LMObjective(other, LENGTH, pretrained=drawn(other, 0)))
    with pytest.raises(ValueError, match="both need one vocabulary"):
        jax.eval_shape(made.loss, made.init(jax.random.key(0)), {"text": TOKENS}, STEP)
