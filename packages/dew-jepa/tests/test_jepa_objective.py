"""The joint-embedding objective: what may reach what, which rows meet, and what the loss is divided by."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from dew.inputs.spec import Field
from dew.nn.backbones.jepa import JepaEncoder, JepaPredictor
from dew.nn.sharding import unboxed
from dew.objectives.base import Step, scalar_loss
from dew.objectives.jepa import CollapseWarning, FeatureDeviation, JepaObjective, Masks, MultiBlock
from dew.objectives.jepa.objective import FLIP_STREAM, flipped, normalized, smooth_l1
from dew.testing import ObjectiveContract, in_memory
from dew.training import Trainer

SHAPE = (12, 12, 1)
IMAGES = np.random.default_rng(0).integers(0, 256, (4, *SHAPE), np.uint8)
FLOATS = jnp.asarray(IMAGES / 127.5 - 1, jnp.float32)
MASK = MultiBlock(targets=2).build((6, 6))
KEY = jax.random.key(7)


def objective(*, layers=2, **fields):
    encoder = JepaEncoder(SHAPE[:2], 1, patch_size=2, hidden_size=16, num_layers=layers, num_heads=2)
    predictor = JepaPredictor((6, 6), 16, hidden_size=8, num_layers=layers, num_heads=2)
    return JepaObjective(encoder, predictor, MASK, Field("image", SHAPE), **fields)


JEPA = objective()
VARIABLES = unboxed(JEPA.initializer(jax.random.key(1)))
TEACHER = unboxed(JEPA.initializer(jax.random.key(2)))
STEP = Step(step=0, key=KEY, ema=TEACHER)


class TestContract(ObjectiveContract):
    stochastic = True

    def objective(self):
        return objective(layers=1)

    def batch(self, rows):
        return {"image": IMAGES[:rows], "label": np.arange(rows, dtype=np.int32)}


# What reaches what.


def test_no_pixel_of_a_target_block_reaches_its_prediction():
    masks = MASK.draw(KEY, 1)

    def prediction(image):
        return jnp.where(masks.target_valid[..., None], JEPA.predictions(VARIABLES, image, masks), 0)

    slopes = np.abs(np.asarray(jax.jit(jax.jacrev(prediction))(FLOATS[:1]))).max(axis=(0, 3, 4))
    # [blocks, slots, 12, 12, 1] becomes the reach of every pixel's patch: [blocks, slots, 36].
    reach = slopes.reshape(*slopes.shape[:2], 6, 2, 6, 2).max(axis=(3, 5)).reshape(*slopes.shape[:2], 36)
    hidden = np.unique(np.asarray(masks.targets)[np.asarray(masks.target_valid)])
    seen = np.asarray(masks.context)[np.asarray(masks.context_valid)]
    used = np.asarray(masks.target_valid)[0]
    assert not reach[..., hidden].any(), "exactly zero"
    assert (reach[used][:, seen] > 0).all(), "every context patch counts"


def test_pixels_outside_a_block_change_its_target():
    changed = FLOATS.at[0, 0, 0, 0].add(0.5)
    before, after = (np.asarray(JEPA.targets(TEACHER, images)) for images in (FLOATS, changed))
    assert (np.abs(before - after)[0] > 0).any(-1).all() and not np.abs(before - after)[1:].any()


def test_the_target_encoder_gets_no_gradient():
    def loss(teacher, live):
        step = Step(step=0, key=KEY, ema={"params": {**live["params"], "context_encoder": teacher}})
        return scalar_loss(JEPA, live, {"image": IMAGES}, step)[0]

    teacher = TEACHER["params"]["context_encoder"]
    slopes, live = jax.jit(jax.grad(loss, argnums=(0, 1)))(teacher, VARIABLES)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(slopes))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(live)), "every live leaf moves"


def test_without_an_average_the_target_is_the_live_encoder_without_its_gradient():
    def loss(live, step):
        return scalar_loss(JEPA, live, {"image": IMAGES}, step)[0]

    gradient = jax.jit(jax.value_and_grad(loss))
    alone = gradient(VARIABLES, Step(step=0, key=KEY))
    beside = gradient(VARIABLES, Step(step=0, key=KEY, ema=VARIABLES))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), alone, beside)


# The moving average.


def test_momentum_rises_along_a_line_that_ends_one_step_after_the_last():
    decay = objective(momentum=(0.996, 1.0), momentum_steps=10).ema.decay
    values = [float(decay(jnp.asarray(update))) for update in range(10)]
    assert values[0] == pytest.approx(0.996, abs=1e-7) and values[9] == pytest.approx(0.9996, abs=1e-7)
    assert np.prod(values) == pytest.approx(0.97821004, abs=1e-6)
    assert float(decay(jnp.asarray(10))) == 1.0


def test_one_update_mixes_the_first_encoder_with_the_one_after_the_optimizer():
    jepa = objective(momentum=(0.996, 1.0), momentum_steps=10)
    trainer = Trainer(jepa, optax.sgd(1.0), key=jax.random.key(0))
    start = trainer.initial_state().params["params"]
    state = trainer.fit(in_memory({"image": IMAGES}, batch=2), steps=1)
    kept, moved = state.ema["params"], state.params["params"]
    assert set(kept) == {"context_encoder"}, "the predictor has no average"
    expected = jax.tree.map(
        lambda old, new: 0.996 * old + 0.004 * new, start["context_encoder"], moved["context_encoder"]
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-7), expected, kept["context_encoder"])
    gap = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), start["context_encoder"], moved["context_encoder"])
    assert max(jax.tree.leaves(gap)) > 1e-3, "else the mixture shows nothing"


def test_a_rejected_step_moves_neither_momentum_nor_target():
    jepa = objective(momentum=(0.5, 1.0), momentum_steps=10)
    trainer = Trainer(jepa, optax.sgd(1.0), key=jax.random.key(0))
    state, _, _ = trainer.place()
    broken = {"image": np.full((2, *SHAPE), np.nan, np.float32)}
    result = trainer.compile(state, broken)(state, broken)
    assert not bool(result.accepted) and int(result.state.updates) == 0
    jax.tree.map(np.testing.assert_array_equal, state.ema, result.state.ema)


# Targets, residuals and denominators.


def test_targets_are_normalized_over_features():
    features = jnp.asarray(np.random.default_rng(1).normal(3.0, 2.0, (2, 5, 64)), jnp.float32)
    features = features.at[0, 0].set(4.0)
    target = np.asarray(normalized(features), np.float64)
    assert not target[0, 0].any(), "a constant token maps to 0"
    rest = target.reshape(10, 64)[1:]
    np.testing.assert_allclose(rest.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(rest.var(-1), 1, atol=1e-4)
    spread = np.asarray(features, np.float64)[1, 2]
    expected = (spread - spread.mean()) / np.sqrt(spread.var() + 1e-5)
    np.testing.assert_allclose(target[1, 2], expected, atol=1e-5)


@pytest.mark.parametrize(("residual", "loss"), [(0.5, 0.125), (-0.5, 0.125), (2.0, 1.5), (-1.0, 0.5)])
def test_small_residuals_count_squared_and_large_ones_linearly(residual, loss):
    assert float(smooth_l1(jnp.asarray(residual))) == loss


@dataclass(frozen=True)
class FixedMask:
    """The same places for every image: two targets of 2 and 6 tokens in a row of 12, and a context."""

    grid: tuple[int, int] = (1, 12)

    def draw(self, key, rows):
        targets = jnp.asarray([[0, 1, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7]], jnp.int32)
        valid = jnp.asarray([[True, True, False, False, False, False], [True] * 6])
        context = jnp.asarray([8, 9, 11, 8], jnp.int32)
        rows_of = lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape))  # noqa: E731
        return Masks(
            rows_of(context),
            rows_of(jnp.asarray([True, True, True, False])),
            rows_of(targets),
            rows_of(valid),
        )


def identity(image, position):
    """A feature that no other image and position has; its last number is the image."""
    phase = (100 * image + position + 1)[..., None] * jnp.arange(1, 8)
    return jnp.concatenate([jnp.sin(phase), jnp.broadcast_to(image, position.shape)[..., None]], -1)


class Identities(nn.Module):
    """An 'encoder' whose features say which image and position they belong to."""

    grid: tuple[int, int] = (1, 12)
    features: int = 8

    @nn.compact
    def __call__(self, images, tokens=None, valid=None, *, train=False):
        self.param("unused", nn.initializers.zeros, (1,))
        tokens = jnp.broadcast_to(jnp.arange(12), (len(images), 12)) if tokens is None else tokens
        return identity(images[:, :1, 0, 0], tokens)


class Recall(nn.Module):
    """Reads the image out of the context and answers with its normalized feature at the places asked for."""

    shift: int = 0
    grid: tuple[int, int] = (1, 12)
    features: int = 8

    @nn.compact
    def __call__(
        self,
        context,
        context_positions,
        target_positions,
        *,
        context_valid=None,
        target_valid=None,
        train=False,
    ):
        self.param("unused", nn.initializers.zeros, (1,))
        return normalized(identity(context[:, :1, -1:], target_positions + self.shift))


def paired(predictor, batch):
    jepa = JepaObjective(Identities(), predictor, FixedMask(), Field("image", (1, 12, 1)))
    stats, _ = jepa.loss(jepa.initializer(KEY), batch, Step(step=0, key=KEY))
    return float(stats.total), float(stats.mass)


def test_predictions_meet_the_targets_of_their_own_image_and_place():
    batch = {"image": np.broadcast_to(np.arange(3.0)[:, None, None, None], (3, 1, 12, 1))}
    total, mass = paired(Recall(), batch)
    assert total < 1e-9 and mass == 3 * 8
    assert paired(Recall(shift=1), batch)[0] > 1.0


class Constant(nn.Module):
    """Every token of every image alike, so that its normalized feature is 0."""

    grid: tuple[int, int] = (1, 12)
    features: int = 8

    @nn.compact
    def __call__(self, images, tokens=None, valid=None, *, train=False):
        self.param("unused", nn.initializers.zeros, (1,))
        return jnp.ones((len(images), 12 if tokens is None else tokens.shape[1], 8))


class FirstBlockWrong(Recall):
    """Answers the first block with residual 1.5, whose loss is 1, and the second with 0."""

    @nn.compact
    def __call__(self, context, context_positions, target_positions, **_):
        self.param("unused", nn.initializers.zeros, (1,))
        wrong = 1.5 * (jnp.arange(2) == 0)[None, :, None, None]
        return jnp.broadcast_to(wrong, (*target_positions.shape, 8))


def constant_objective(predictor):
    return JepaObjective(Constant(), predictor, FixedMask(), Field("image", (1, 12, 1)))


def test_all_target_tokens_share_one_denominator():
    """Blocks of 2 and 6 tokens with losses 1 and 0 make 0.25; a mean of their means would make 0.5."""
    jepa = constant_objective(FirstBlockWrong())
    batch = {"image": np.zeros((3, 1, 12, 1), np.float32)}
    stats, _ = jepa.loss(jepa.initializer(KEY), batch, Step(step=0, key=KEY))
    assert (float(stats.total), float(stats.mass)) == (pytest.approx(6.0), 24.0)
    assert float(jepa.reduce_loss(stats)[0]) == pytest.approx(0.25)


def test_an_accumulated_window_is_divided_once_by_all_its_tokens():
    trainer = Trainer(JEPA, optax.sgd(1.0), key=jax.random.key(3), accumulation=2)
    start = trainer.initial_state()
    data = in_memory({"image": IMAGES}, batch=2)
    end = trainer.fit(data, steps=2)

    def window(params):
        parts = []
        for attempt in range(2):
            step = Step(step=attempt, key=jax.random.fold_in(start.key, attempt), ema=start.averaged)
            rows = {"image": IMAGES[2 * attempt : 2 * attempt + 2]}
            parts.append(JEPA.loss({"params": params}, rows, step)[0])
        masses = jnp.asarray([part.mass for part in parts])
        return sum(part.total for part in parts) / masses.sum(), masses

    (_, masses), gradient = jax.jit(jax.value_and_grad(window, has_aux=True))(start.params["params"])
    assert float(masses[0]) != float(masses[1]), "equal masses would hide a mean of means"
    moved = jax.tree.map(jnp.subtract, start.params["params"], end.params["params"])
    gap = optax.tree.norm(jax.tree.map(jnp.subtract, moved, gradient))
    assert float(gap) < 1e-5 * float(optax.tree.norm(gradient))


def test_the_order_of_context_tokens_does_not_matter():
    masks = MASK.draw(KEY, 4)
    order = jnp.asarray(np.random.default_rng(3).permutation(masks.context.shape[1]))
    shuffled = masks.replace(context=masks.context[:, order], context_valid=masks.context_valid[:, order])
    predict = jax.jit(lambda chosen: JEPA.predictions(VARIABLES, FLOATS, chosen))
    gap = jnp.abs(predict(masks) - predict(shuffled))
    assert float(jnp.where(masks.target_valid[..., None], gap, 0).max()) < 1e-6


def test_unused_slots_change_nothing():
    masks = MASK.draw(KEY, 4)
    assert not bool(masks.context_valid.all()) and not bool(masks.target_valid.all())
    moved = masks.replace(
        context=jnp.where(masks.context_valid, masks.context, 35),
        targets=jnp.where(masks.target_valid, masks.targets, 35),
    )
    predict = jax.jit(lambda chosen: JEPA.predictions(VARIABLES, FLOATS, chosen))
    gap = jnp.abs(predict(masks) - predict(moved))
    assert float(jnp.where(masks.target_valid[..., None], gap, 0).max()) < 1e-6


def test_mirroring_gives_all_four_views_alike_and_each_image_its_own():
    image = jnp.arange(4.0).reshape(1, 2, 2, 1)
    views = np.asarray(jax.jit(flipped)(jnp.broadcast_to(image, (4000, 2, 2, 1)), KEY))[..., 0].reshape(-1, 4)
    found, counts = np.unique(views, axis=0, return_counts=True)
    assert found.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
    np.testing.assert_allclose(counts / 4000, 0.25, atol=0.03)
    few = flipped(FLOATS[:2], KEY)
    np.testing.assert_array_equal(few, flipped(FLOATS, KEY)[:2])


def test_a_mirrored_run_trains_on_mirrored_images_and_scores_plain_ones():
    plain, mirrored = objective(), objective(flip=True)
    batch = {"image": IMAGES}
    expected = flipped(FLOATS, jax.random.fold_in(KEY, FLIP_STREAM))
    assert np.abs(np.asarray(expected - FLOATS)).max() > 0
    ours = scalar_loss(mirrored, VARIABLES, batch, STEP)[0]
    assert float(ours) == pytest.approx(
        float(scalar_loss(plain, VARIABLES, {"image": expected}, STEP)[0]), rel=1e-6
    )
    np.testing.assert_allclose(
        mirrored.evaluate(VARIABLES, batch, STEP).features, plain.evaluate(VARIABLES, batch, STEP).features
    )


# Evaluation.


def test_evaluation_averages_the_target_encoders_tokens_of_every_row():
    batch = {"image": IMAGES, "label": np.arange(4, dtype=np.int32)}
    found = JEPA.evaluate(VARIABLES, batch, STEP)
    tokens = JEPA.encoder.apply({"params": TEACHER["params"]["context_encoder"]}, FLOATS)
    np.testing.assert_allclose(found.features, np.asarray(tokens).mean(1), atol=1e-6)
    assert found.source == "target encoder, average-pooled"
    np.testing.assert_array_equal(found.labels, np.arange(4))
    assert JEPA.evaluate(VARIABLES, {"image": IMAGES}, STEP).labels is None


def test_a_constant_encoder_has_no_loss_and_raises_the_warning():
    class Right(FirstBlockWrong):
        @nn.compact
        def __call__(self, context, context_positions, target_positions, **_):
            self.param("unused", nn.initializers.zeros, (1,))
            return jnp.zeros((*target_positions.shape, 8))

    jepa = constant_objective(Right())
    batch = {"image": np.random.default_rng(5).normal(size=(3, 1, 12, 1)).astype(np.float32)}
    variables = jepa.initializer(KEY)
    assert float(scalar_loss(jepa, variables, batch, Step(step=0, key=KEY))[0]) == 0
    meter = FeatureDeviation()
    with pytest.warns(CollapseWarning):
        meter.finalize(meter(jepa.evaluate(variables, batch, Step(step=0, key=KEY))))


def test_the_preview_hides_what_the_context_encoder_does_not_see():
    shown = JEPA.preview(VARIABLES, {"image": IMAGES}, STEP)
    masks = MASK.draw(KEY, 4)
    patches = np.abs(np.asarray(shown.images)).reshape(4, 6, 2, 6, 2).max((2, 4)).reshape(4, 36)
    for row in range(4):
        seen = np.unique(np.asarray(masks.context[row])[np.asarray(masks.context_valid[row])])
        assert set(np.flatnonzero(patches[row])) == set(seen.tolist())
    np.testing.assert_allclose(shown.references, FLOATS, atol=1e-6)


# Refusals.


def test_parts_that_do_not_fit_are_refused_with_their_numbers():
    encoder = JepaEncoder((12, 12), 1, patch_size=2, hidden_size=16, num_layers=1, num_heads=2)
    fits = JepaPredictor((6, 6), 16, hidden_size=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="encoder 6x6, predictor 6x6, mask 8x8"):
        JepaObjective(encoder, fits, MultiBlock().build((8, 8)), Field("image", SHAPE))
    with pytest.raises(ValueError, match="8 features, and the encoder has 16"):
        narrow = JepaPredictor((6, 6), 8, hidden_size=8, num_layers=1, num_heads=2)
        JepaObjective(encoder, narrow, MASK, Field("image", SHAPE))
    with pytest.raises(ValueError, match=r"momentum=.*1.2"):
        objective(momentum=(0.9, 1.2))
    with pytest.raises(ValueError, match="momentum_steps=0"):
        objective(momentum_steps=0)


def test_images_of_another_shape_or_type_and_a_missing_field_are_refused():
    with pytest.raises(ValueError, match=r"\(8, 8, 1\).*\(12, 12, 1\)"):
        JEPA.loss(VARIABLES, {"image": np.zeros((2, 8, 8, 1), np.uint8)}, STEP)
    with pytest.raises(TypeError, match="int32"):
        JEPA.images({"image": IMAGES.astype(np.int32)})
    with pytest.raises(ValueError, match=r"no field 'image' .* it has label"):
        JEPA.images({"label": np.arange(4)})


def test_a_network_with_running_statistics_is_refused():
    class Counting(Identities):
        @nn.compact
        def __call__(self, images, tokens=None, valid=None, *, train=False):
            self.variable("batch_stats", "seen", lambda: jnp.zeros(()))
            return super().__call__(images, tokens, valid, train=train)

    jepa = JepaObjective(Counting(), Recall(), FixedMask(), Field("image", (1, 12, 1)))
    with pytest.raises(ValueError, match="encoder keeps the collection 'batch_stats'"):
        jepa.init(KEY)
