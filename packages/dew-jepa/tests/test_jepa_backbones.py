"""The encoder and the predictor: patches, positions, subsets and sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.jepa import JepaEncoder, JepaPredictor
from dew.nn.sharding import unboxed

ENCODER = JepaEncoder((8, 12), 3, patch_size=4, hidden_size=16, num_layers=2, num_heads=2)
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 12, 3)), jnp.float32)
VARIABLES = unboxed(ENCODER.init(jax.random.key(0), IMAGES))


def test_all_patches_given_in_any_order_are_the_whole_image():
    whole = ENCODER.apply(VARIABLES, IMAGES)
    order = jnp.asarray([4, 2, 0, 5, 1, 3])
    some = ENCODER.apply(VARIABLES, IMAGES, jnp.broadcast_to(order, (2, 6)))
    np.testing.assert_allclose(some, whole[:, order], atol=1e-5)


def test_invalid_tokens_are_not_seen():
    tokens = jnp.asarray([[0, 3, 5], [1, 2, 4]])
    alone = ENCODER.apply(VARIABLES, IMAGES, tokens)
    padded = jnp.concatenate([tokens, jnp.asarray([[1, 1], [5, 0]])], 1)
    valid = jnp.arange(5) < 3
    beside = ENCODER.apply(VARIABLES, IMAGES, padded, jnp.broadcast_to(valid, (2, 5)))
    np.testing.assert_allclose(beside[:, :3], alone, atol=1e-6)
    assert np.abs(ENCODER.apply(VARIABLES, IMAGES, padded)[:, :3] - alone).max() > 1e-3


def test_position_scale_weighs_the_codes_against_the_patches():
    silent = ENCODER.clone(position_scale=0.0)
    features = silent.apply(VARIABLES, jnp.ones_like(IMAGES))
    np.testing.assert_allclose(features, jnp.broadcast_to(features[:, :1], features.shape), atol=1e-5)


def test_blocks_are_predicted_apart():
    predictor = JepaPredictor((2, 3), 16, hidden_size=8, num_layers=2, num_heads=2)
    context = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 16)), jnp.float32)
    places, targets = jnp.asarray([[0, 1], [2, 3]]), jnp.asarray([[[4, 5], [2, 3]], [[0, 1], [4, 5]]])
    variables = unboxed(predictor.init(jax.random.key(1), context, places, targets))
    both = predictor.apply(variables, context, places, targets)
    assert both.shape == (2, 2, 2, 16)
    second = predictor.apply(variables, context, places, targets[:, 1:])
    np.testing.assert_allclose(both[:, 1:], second, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"patch_size": 5}, "patch_size=5 .* use 1, 2, 4$"),
        ({"hidden_size": 18, "num_heads": 2}, "hidden_size=18"),
        ({"num_heads": 3}, "num_heads=3 .* use 1, 2, 4, 8, 16$"),
        ({"mlp_ratio": 0.0}, "mlp_ratio=0.0"),
        ({"num_layers": 0}, "num_layers=0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        JepaEncoder((8, 12), **{"patch_size": 4, "hidden_size": 16, "num_heads": 2, **fields})


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"image_size=.8, 12. and channels=3"):
        ENCODER.apply(VARIABLES, IMAGES[..., :1])
