"""TextToImage: captions to images, rows on their own, weights that are swapped, what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

from dew.diffusion.presets import Flow
from dew.failure import StatedFailure
from dew.inference.images import Images, TextToImage
from dew.inference.images.task import walk
from dew.inputs import Condition, Field, InputSpec
from dew.inputs.encoders import LabelEncoder
from dew.objectives.base import Task
from dew.sampling import CFG, DDPM, Euler

SHAPE = (4, 4, 1)
CLASSES = ("cat", "dog", "owl")
TABLE = jnp.asarray([0.5, -0.5, 0.25, -0.125])
"""What the model below draws for each class, and for none."""


class Constant(nn.Module):
    """The exact velocity of data that is one constant image for each class."""

    @nn.compact
    def __call__(self, x, noise_level, textcontext=None, train=False):
        table = self.param("table", lambda key: TABLE)
        value = table[-1] if textcontext is None else (textcontext @ table)[:, None, None, None]
        return (x - value) / (noise_level / 1000)[:, None, None, None]


class Mixing(nn.Module):
    """A network without symmetries, so that rows that were mixed up would show."""

    @nn.compact
    def __call__(self, x, noise_level, textcontext=None, train=False):
        told = jnp.concatenate([noise_level[:, None] / 1000, textcontext], axis=-1)
        flat = jnp.concatenate([x.reshape(len(x), -1), told], axis=-1)
        return nn.Dense(16)(nn.gelu(nn.Dense(32)(flat))).reshape(x.shape)


CONDITIONED = InputSpec(Field("image", SHAPE), {"textcontext": Condition(LabelEncoder(CLASSES), "label")})
PLAIN = InputSpec(Field("image", SHAPE))


def task_of(model=None, inputs=CONDITIONED, **fields):
    model = model or Constant()
    context = jnp.zeros((1, len(CLASSES) + 1)) if inputs.conditions else None
    variables = model.init(jax.random.key(0), jnp.zeros((1, *SHAPE)), jnp.ones(1), context)
    return TextToImage(model, Flow().build(), inputs, variables, **{"steps": 6, **fields})


def values(images):
    return np.asarray(images.host().images).mean(axis=(1, 2, 3))


def test_task_is_a_task():
    assert isinstance(task_of(), Task)


def test_each_caption_gets_its_own_image():
    drawn = task_of()(["dog", "cat", "dog", "owl"], seed=0)
    np.testing.assert_allclose(values(drawn), [-0.5, 0.5, -0.5, 0.25], atol=1e-5)
    assert drawn.captions == ("dog", "cat", "dog", "owl")
    assert drawn.host().images.shape == (4, *SHAPE)


def test_one_text_is_one_image():
    assert task_of()("owl", seed=0).rows == 1


def test_guidance_extrapolates_from_no_class():
    task = task_of(guidance=CFG(1.5))
    np.testing.assert_allclose(values(task("cat", seed=0)), -0.125 + 1.5 * (0.5 + 0.125), atol=1e-5)
    np.testing.assert_allclose(values(task("cat", seed=0, guidance=CFG(0.0))), -0.125, atol=1e-5)
    np.testing.assert_allclose(values(task("cat", seed=0, guidance=None)), 0.5, atol=1e-5)


def test_unconditional_branch_can_be_another_caption():
    task = task_of(guidance=CFG(1.25))
    ready = task.prepare("cat", seed=0, unconditional="dog")
    np.testing.assert_allclose(values(task(ready)), -0.5 + 1.25 * (0.5 + 0.5), atol=1e-5)


def test_decoded_images_lie_between_minus_one_and_one():
    task = task_of(guidance=CFG(3.0))
    np.testing.assert_array_equal(values(task("cat", seed=0)), 1.0)
    np.testing.assert_allclose(values(task("cat", seed=0, decode=False)), 1.75, atol=1e-5)


def test_image_depends_on_its_own_key_alone():
    task = task_of(Mixing(), guidance=CFG(2.0), sampler=DDPM())
    keys = jax.random.split(jax.random.key(3), 5)
    names = ["cat", "dog", "owl", "cat", "dog"]
    together = np.asarray(task(names, key=keys).host().images)
    for order in ([4, 2, 0], [3], [1, 1]):
        chosen = task([names[each] for each in order], key=keys[np.asarray(order)]).host().images
        np.testing.assert_allclose(chosen, together[order], atol=2e-6)


def test_seed_is_its_key_and_rows_fold_their_index():
    task = task_of(Mixing(), sampler=DDPM())
    key = jax.random.key(11)
    by_seed = task(["cat", "owl"], seed=11).images
    np.testing.assert_array_equal(task(["cat", "owl"], key=key).images, by_seed)
    rows = jnp.stack([jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)])
    np.testing.assert_array_equal(task(["cat", "owl"], key=rows).images, by_seed)


def test_bound_task_draws_with_the_new_weights_and_the_same_executable():
    task = task_of()
    task("cat", seed=0)
    compiled = walk._cache_size()
    other = task.bind({"params": {"table": -TABLE}})
    np.testing.assert_allclose(values(other("cat", seed=0)), -0.5, atol=1e-5)
    np.testing.assert_allclose(values(task("cat", seed=1)), 0.5, atol=1e-5)
    assert walk._cache_size() == compiled


def test_task_keeps_the_mapping_of_its_construction():
    variables = {"params": {"table": TABLE}}
    task = TextToImage(Constant(), Flow().build(), CONDITIONED, variables, steps=4)
    variables["params"]["table"] = -TABLE
    np.testing.assert_allclose(values(task("cat", seed=0)), 0.5, atol=1e-5)


def test_prepared_request_is_the_request():
    task = task_of(Mixing(), sampler=DDPM())
    ready = task.prepare(["cat", "dog"], seed=5, steps=3)
    assert ready.rows == 2
    np.testing.assert_array_equal(task(ready).images, task(["cat", "dog"], seed=5, steps=3).images)


def test_given_noise_is_brought_to_the_first_level():
    task = task_of(Mixing(), sampler=Euler())
    noise = jax.random.normal(jax.random.key(2), (1, *SHAPE))
    first = task.prepare("cat", seed=0, noise=noise)
    second = task.prepare("cat", seed=9, initial=noise)
    np.testing.assert_array_equal(task(first).images, task(second).images)


def test_given_times_replace_the_steps():
    task = task_of(Mixing(), sampler=Euler())
    ready = task.prepare("cat", seed=0, times=[1.0, 0.5])
    np.testing.assert_array_equal(task(ready).images, task("cat", seed=0, steps=2).images)


def test_grid_of_the_task_says_what_is_walked():
    process = Flow(shift=3.0).build()
    task = task_of(Mixing(), grid=lambda steps: (process, process.grid(steps)))
    assert task.prepare("cat", seed=0, steps=4).grid == process.grid(4)


def test_trajectory_can_end_at_its_last_level():
    task = task_of(final_denoise=False, steps=2)
    noise = jnp.ones((1, *SHAPE))
    # One step from t = 1 to 0.5 along the line from the noise to the image.
    np.testing.assert_allclose(values(task(task.prepare("cat", seed=0, noise=noise))), 0.75, atol=1e-6)


def test_finish_runs_on_decoded_images_alone():
    task = task_of(finish=lambda params, images: images + params["params"]["table"][0])
    np.testing.assert_allclose(values(task("cat", seed=0)), 1.0, atol=1e-5)
    np.testing.assert_allclose(values(task("cat", seed=0, decode=False)), 0.5, atol=1e-5)


def test_model_without_conditions_takes_a_number():
    drawn = task_of(inputs=PLAIN, guidance=CFG(3.0))(3, seed=0)
    np.testing.assert_allclose(values(drawn), [-0.125] * 3, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: task_of()("cta", seed=0), ValueError, "did you mean 'cat'"),
        (lambda: task_of()(3, seed=0), TypeError, "prompts=3 is a number"),
        (lambda: task_of()([], seed=0), ValueError, "holds no caption"),
        (lambda: task_of()(["cat", 3], seed=0), TypeError, "must be text, also where"),
        (lambda: task_of(inputs=PLAIN)("cat", seed=0), ValueError, "reads no captions"),
        (lambda: task_of(inputs=PLAIN)(0, seed=0), ValueError, "prompts=0"),
        (lambda: task_of(inputs=PLAIN)(1, seed=0, guidance=CFG(3.0)), ValueError, "scale=3.0 has nothing"),
        (lambda: task_of()("cat"), ValueError, "exactly one of key and seed"),
        (lambda: task_of()("cat", seed=0, key=jax.random.key(0)), ValueError, "exactly one of key and seed"),
        (lambda: task_of()("cat", seed=0.5), TypeError, r"seed=0\.5"),
        (lambda: task_of()("cat", seed=0, steps=0), ValueError, "steps=0"),
        (lambda: task_of(steps=0), ValueError, "steps=0"),
        (lambda: task_of(autoencoder=object()), ValueError, "latent diffusion is not supported"),
        (lambda: task_of().prepare("cat", seed=0, image=1), ValueError, "image is not supported"),
        (lambda: task_of().prepare("cat", seed=0, mask=1), ValueError, "mask is not supported"),
        (lambda: task_of().prepare("cat", seed=0, encode_key=1), ValueError, "encode_key is not supported"),
        (lambda: task_of().prepare("cat", seed=0, steps=2, times=[1.0]), ValueError, "steps=2 and times"),
        (
            lambda: task_of().prepare("cat", seed=0, noise=jnp.zeros((2, *SHAPE))),
            ValueError,
            r"noise of shape \(2, 4, 4, 1\) must be \(1, 4, 4, 1\)",
        ),
        (
            lambda: task_of().prepare("cat", seed=0, noise=jnp.zeros(1), initial=jnp.zeros(1)),
            ValueError,
            "noise and initial are both given",
        ),
        (
            lambda: task_of()(task_of().prepare("cat", seed=0), seed=1),
            ValueError,
            "seed is settled by the prepared request",
        ),
        (
            lambda: task_of(guidance=CFG(2.0), blank={}).prepare("cat", seed=0),
            ValueError,
            "lacks 'textcontext'",
        ),
    ],
)
def test_request_that_makes_no_sense_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_pixels_round_to_the_nearest_byte():
    levels = np.asarray([-1.5, -1.0, 0.0, 0.5, 1.0, 3.0]).reshape(1, 1, 6, 1)
    np.testing.assert_array_equal(Images(levels, 1).pixels().ravel(), [0, 0, 128, 191, 255, 255])


def test_image_that_diverged_is_refused():
    broken = np.zeros((2, 1, 1, 1))
    broken[1] = np.nan
    with pytest.raises(StatedFailure, match="image 1 of 2 is not finite"):
        Images(broken, 2).pixels()


def test_saved_files_hold_the_pixels(tmp_path):
    images = Images(np.linspace(-1, 1, 24).reshape(2, 2, 2, 3), 2, ("a cat/dog", ""))
    paths = images.save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["0000-a-cat-dog.png", "0001.png"]
    for path, pixels in zip(paths, images.pixels(), strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(path)), pixels)


def test_caption_cannot_leave_the_folder(tmp_path):
    (path,) = Images(np.zeros((1, 1, 1, 1)), 1, ("../../x",)).save(tmp_path)
    assert path.parent == tmp_path
    assert path.name == "0000-x.png"
