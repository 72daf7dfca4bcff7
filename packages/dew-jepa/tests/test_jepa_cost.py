"""The cost of I-JEPA's three networks, by hand and against the traced products."""

import jax
import jax.numpy as jnp
import numpy as np

from dew.inputs.spec import Field
from dew.nn.backbones.jepa import JepaEncoder, JepaPredictor
from dew.objectives.jepa import JepaObjective
from dew.objectives.jepa.masks import Masks
from dew.testing.products import multiply_adds

ENCODER = JepaEncoder(
    (8, 8), channels=3, patch_size=2, hidden_size=16, num_layers=2, num_heads=2, attention_impl="reference"
)
PREDICTOR = JepaPredictor((4, 4), 16, hidden_size=8, num_layers=1, num_heads=2, attention_impl="reference")


class Fixed:
    """Five context slots and two blocks of three targets."""

    grid = (4, 4)

    def draw(self, key, rows):
        return Masks(
            jnp.zeros((rows, 5), jnp.int32),
            jnp.ones((rows, 5), bool),
            jnp.zeros((rows, 2, 3), jnp.int32),
            jnp.ones((rows, 2, 3), bool),
        )


def test_networks_cost_what_a_hand_computes():
    """Encoder, 5 tokens: 5 x 12 x 16 = 960 embedded; two layers of 5 (4 x 256 + 2 x 16 x 64) + 2 x 25 x 16.

    Predictor: 5 x 16 x 8 = 640; two blocks of 8 (4 x 64 + 2 x 8 x 32) + 2 x 64 x 8 and 3 x 8 x 16 read out.
    """
    assert ENCODER.forward_macs(5) == 960 + 2 * (15_360 + 800)
    assert PREDICTOR.forward_macs(5, 3, 2) == 640 + 2 * (6_144 + 1_024 + 384)


def test_a_step_is_the_trained_networks_three_times_and_the_target_encoder_once():
    objective = JepaObjective(ENCODER, PREDICTOR, Fixed(), Field("image", (8, 8, 3)))
    cost = objective.step_cost({"image": np.zeros((7, 8, 8, 3), np.uint8)})
    whole = 16 * 12 * 16 + 2 * (16 * 3_072 + 2 * 256 * 16)
    assert cost.flops == 2 * 7 * (3 * (33_280 + 15_744) + whole)


def test_forward_passes_trace_to_the_counted_products():
    objective = JepaObjective(ENCODER, PREDICTOR, Fixed(), Field("image", (8, 8, 3)))
    variables = jax.eval_shape(objective.init, jax.random.key(0))
    images, masks = jnp.zeros((2, 8, 8, 3)), Fixed().draw(None, 2)
    counted = ENCODER.forward_macs(5) + PREDICTOR.forward_macs(5, 3, 2)
    assert multiply_adds(lambda tree: objective.predictions(tree, images, masks), variables) == 2 * counted
    assert multiply_adds(lambda tree: objective.targets(tree, images), variables) == 2 * ENCODER.forward_macs(
        16
    )
