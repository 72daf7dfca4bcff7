"""Training a denoiser: the loss, its draws, evaluation and previews."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.diffusion.presets import EDM, Flow, Linear
from dew.inference.images import TextToImage
from dew.inputs.encoders import LabelEncoder
from dew.inputs.spec import Condition, Field, InputSpec
from dew.nn.backbones.dit import SimpleDiT
from dew.objectives.base import Step, scalar_loss
from dew.objectives.diffusion import VALIDATION_SAMPLES, DiffusionObjective
from dew.sampling.images.config import CFG
from dew.sampling.solvers import Euler
from dew.testing import ObjectiveContract

CLASSES = ("cat", "dog", "eel")
SHAPE = (4, 4, 1)


def inputs(*, labelled=True):
    conditions = {"textcontext": Condition(LabelEncoder(CLASSES), "label")} if labelled else {}
    return InputSpec(Field("image", SHAPE), conditions)


def objective(model=None, process=None, *, labelled=True, **options):
    tiny = SimpleDiT(hidden_size=8, num_layers=1, num_heads=2, output_channels=1)
    options = {"sampler": Euler(), "steps": 3, "ema_decay": None} | options
    return DiffusionObjective(model or tiny, process or Flow().build(), inputs(labelled=labelled), **options)


def batch(rows):
    draw = np.random.default_rng(0)
    return {
        "image": draw.integers(0, 256, (rows, *SHAPE)).astype(np.uint8),
        "label": (np.arange(rows) % len(CLASSES)).astype(np.int32),
    }


def clock(seed=2, ema=None):
    return Step(step=0, key=jax.random.key(seed), ema=ema)


class Told(nn.Module):
    """Predicts the number its condition names, and keeps what it was given."""

    @nn.compact
    def __call__(self, x, noise_level, textcontext=None, *, train=False):
        scale = self.param("scale", nn.initializers.ones, ())
        if textcontext is None:
            return scale * jnp.zeros_like(x)
        named = textcontext @ jnp.arange(textcontext.shape[-1], dtype=x.dtype)
        return scale * jnp.broadcast_to(named[:, None, None, None], x.shape)


class TestDiffusionObjective(ObjectiveContract):
    stochastic = True

    def objective(self):
        return objective()

    def batch(self, rows):
        return batch(rows)


class TestUnconditionalObjective(TestDiffusionObjective):
    def objective(self):
        return objective(process=EDM().build(), labelled=False)


def started(built):
    return jax.jit(built.initializer)(jax.random.key(0))


@pytest.mark.parametrize(
    ("process", "floor"),
    [(EDM(sigma_data=1.0), 1.0), (Flow(), 2.0), (Linear(predicts="v"), 1.0)],
    ids=["edm", "flow", "v"],
)
def test_zero_output_on_unit_gaussian_data_costs_the_closed_form(process, floor):
    built = objective(Told(), process.build(), labelled=False)
    rows = {"image": jax.random.normal(jax.random.key(3), (4000, *SHAPE))}
    value, _ = jax.jit(lambda: scalar_loss(built, {"params": {"scale": jnp.ones(())}}, rows, clock()))()
    assert float(value) == pytest.approx(floor, rel=0.03)


def test_bytes_become_minus_one_to_one():
    built = objective()
    ends = {"image": np.stack([np.full(SHAPE, value, np.uint8) for value in (0, 255)])}
    np.testing.assert_allclose(built.samples(ends)[:, 0, 0, 0], [-1.0, 1.0])
    with pytest.raises(TypeError, match="int32"):
        built.samples({"image": np.zeros((1, *SHAPE), np.int32)})


def test_a_sample_of_another_shape_and_a_missing_field_are_refused_by_name():
    with pytest.raises(ValueError, match=r"\(8, 8, 1\).*\(4, 4, 1\)"):
        objective().samples({"image": np.zeros((1, 8, 8, 1), np.uint8)})
    with pytest.raises(ValueError, match="no field 'label'"):
        objective().encoded_conditions({}, {"image": 1})


def seen_conditions(probability, rows=6000):
    """The numbers that the conditions of a batch name to the model in one loss."""
    seen = []

    class Spy(Told):
        @nn.compact
        def __call__(self, x, noise_level, textcontext=None, *, train=False):
            jax.debug.callback(seen.append, textcontext)
            return super().__call__(x, noise_level, textcontext, train=train)

    built = objective(Spy(), unconditional_prob=probability)
    data = {"image": np.zeros((rows, *SHAPE), np.uint8), "label": np.full(rows, 1, np.int32)}
    built.loss({"params": {"scale": jnp.ones(())}}, data, clock())
    jax.effects_barrier()
    return np.asarray(seen[-1])


def test_part_of_the_rows_lose_their_condition():
    given = seen_conditions(0.25)
    assert set(given.argmax(-1)) == {1, 3} and (given.sum(-1) == 1).all()
    assert (given.argmax(-1) == 3).mean() == pytest.approx(0.25, abs=0.02)
    assert set(seen_conditions(0.0).argmax(-1)) == {1}
    assert set(seen_conditions(1.0).argmax(-1)) == {3}


def test_a_row_draws_alike_whatever_stands_beside_it():
    built = objective(unconditional_prob=0.5)
    variables = started(built)

    def gradient_of_first(rows):
        def total(x):
            images = jnp.concatenate([x[None], rows["image"][1:]])
            return built.loss(variables, {**rows, "image": images}, clock())[0].total

        return jax.grad(total)(rows["image"][0])

    whole = {"image": jax.random.normal(jax.random.key(1), (4, *SHAPE)), "label": jnp.arange(4) % 3}
    few = {name: leaf[:2] for name, leaf in whole.items()}
    other = {"image": whole["image"].at[1:].add(3), "label": whole["label"].at[1:].set(2)}
    first = gradient_of_first(whole)
    assert float(jnp.abs(first).max()) > 0
    for rows in (few, other):
        np.testing.assert_allclose(gradient_of_first(rows), first, rtol=1e-5, atol=1e-7)


def test_evaluation_draws_a_sample_for_every_row_from_its_own_condition_and_key():
    built = objective(guidance=None)
    variables = moved(started(built))
    data = batch(6)
    grid = built.evaluate(variables, data, clock())
    assert grid.images.shape == (6, *SHAPE)
    np.testing.assert_allclose(grid.references, data["image"] / 127.5 - 1, atol=1e-6)
    relabelled = {**data, "label": data["label"].copy()}
    relabelled["label"][4] = 0
    changed = np.abs(built.evaluate(variables, relabelled, clock()).images - grid.images)
    assert changed[4].max() > 1e-3 and np.delete(changed, 4, axis=0).max() < 1e-6
    fewer = built.evaluate(variables, {name: leaf[:3] for name, leaf in data.items()}, clock())
    np.testing.assert_allclose(fewer.images, grid.images[:3], atol=1e-5)


def moved(variables):
    """The variables with noise on every leaf, so that nothing is zero that starts so."""
    draw = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: leaf + 0.3 * draw.normal(size=leaf.shape).astype(leaf.dtype), variables)


@pytest.mark.parametrize("scale", [None, 1.0, 3.0])
def test_guided_samples_follow_the_guided_velocity(scale):
    """A constant velocity u ends at noise - u. Class 2 says 2, no class 3: u = 3 + scale (2 - 3)."""
    guidance = None if scale is None else CFG(scale)
    built = objective(Told(), guidance=guidance)
    variables = {"params": {"scale": jnp.ones(())}}
    data = {**batch(2), "label": np.full(2, 2, np.int32)}
    drawn = built.evaluate(variables, data, clock()).images
    still = built.evaluate({"params": {"scale": jnp.zeros(())}}, data, clock()).images
    velocity = 2.0 if scale is None else 3 + scale * (2 - 3)
    np.testing.assert_allclose(still - drawn, velocity, atol=1e-5)


def test_preview_shows_every_class_under_its_name_in_as_many_rounds_as_fit():
    shown = objective().preview(started(objective()), batch(2), clock())
    assert list(shown.captions) == list(CLASSES) * 13 and shown.images.shape == (39, *SHAPE)


class Unnamed(LabelEncoder):
    """Captions without number, so that none is an example."""

    examples = ()


def test_preview_without_examples_shows_the_first_rows_of_the_batch_as_many_as_there_are():
    spec = InputSpec(Field("image", SHAPE), {"textcontext": Condition(Unnamed(CLASSES), "label")})
    built = DiffusionObjective(Told(), Flow().build(), spec, sampler=Euler(), steps=2, guidance=None)
    for rows, shown in ((2, 2), (9, VALIDATION_SAMPLES)):
        drawn = built.preview({"params": {"scale": jnp.ones(())}}, batch(rows), clock())
        assert drawn.images.shape == (shown, *SHAPE) and not drawn.captions


def test_preview_without_conditions_shows_a_few_images():
    built = objective(labelled=False)
    assert built.guidance is None
    shown = built.preview(started(built), batch(2), clock())
    assert shown.images.shape == (VALIDATION_SAMPLES, *SHAPE) and not shown.captions


def test_evaluation_and_preview_use_the_average_where_there_is_one():
    built = objective(Told(), guidance=None)
    live, average = ({"params": {"scale": jnp.asarray(value)}} for value in (0.0, 1.0))
    data = batch(3)
    plain = built.evaluate(average, data, clock()).images
    np.testing.assert_array_equal(built.evaluate(live, data, clock(ema=average)).images, plain)
    shown = built.preview(live, data, clock(ema=average)).images
    np.testing.assert_array_equal(shown, built.preview(average, data, clock()).images)
    assert float(np.abs(shown - built.preview(live, data, clock()).images).max()) > 0.5


def test_pretrained_variables_are_taken_as_they_are_and_others_refused_by_path():
    given = jax.tree.map(lambda leaf: leaf + 1, nn.meta.unbox(started(objective())))
    again = nn.meta.unbox(started(objective(pretrained=given)))
    jax.tree.map(np.testing.assert_array_equal, again, given)
    wrong = {"params": {**given["params"], "patch_in": {"bias": jnp.zeros(3)}}}
    with pytest.raises(ValueError, match="params/patch_in/bias"):
        started(objective(pretrained=wrong))


class Tower(LabelEncoder):
    """Labels under frozen weights of their own."""

    @property
    def params(self):
        return {"scale": jnp.asarray(2.0)}

    def encode(self, params, tokens):
        return params["scale"] * super().encode(params, tokens)


class Counting(Tower):
    """Notes what is encoded."""

    def __init__(self):
        super().__init__(CLASSES)
        self.encoded = []

    def encode(self, params, tokens):
        self.encoded.append(tuple(np.asarray(tokens)))
        return super().encode(params, tokens)


def test_what_stands_for_no_condition_is_encoded_once_and_is_the_task_s_too():
    encoder = Counting()
    spec = InputSpec(Field("image", SHAPE), {"textcontext": Condition(encoder, "label")})
    built = DiffusionObjective(Told(), Flow().build(), spec, sampler=Euler(), steps=2)
    assert encoder.encoded == [(3,)]
    built.blank_conditions({"textcontext": jnp.zeros((1, 4))})
    task = TextToImage.from_objective(built, {"params": {"scale": jnp.ones(())}, "encoders": {}})
    task.bind({"params": {"scale": jnp.ones(())}, "encoders": {"textcontext": {"scale": 2.0}}}).prepare(
        "eel", seed=0
    )
    assert encoder.encoded == [(3,), (2,)]


def test_frozen_encoders_travel_in_the_tree_outside_of_what_is_trained():
    spec = InputSpec(Field("image", SHAPE), {"textcontext": Condition(Tower(CLASSES), "label")})
    built = DiffusionObjective(Told(), Flow().build(), spec, sampler=Euler(), steps=2)
    variables = built.initializer(jax.random.key(0))
    assert variables["encoders"] == {"textcontext": {"scale": 2.0}}
    assert set(built.trainable(variables)) == {"params"}
    doubled = {**variables, "encoders": {"textcontext": {"scale": jnp.asarray(4.0)}}}
    assert float(built.encoded_conditions(doubled, batch(1))["textcontext"].max()) == 4.0
    assert (
        float(built.blank_conditions({"textcontext": jnp.zeros((1, 4), jnp.bfloat16)})["textcontext"][0, 3])
        == 2
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"unconditional_prob": 1.5}, "unconditional_prob=1.5"),
        ({"ema_decay": -0.1}, "ema_decay=-0.1"),
        ({"steps": 0}, "steps=0"),
        ({"autoencoder": object()}, "autoencoder"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=named):
        objective(**options)
