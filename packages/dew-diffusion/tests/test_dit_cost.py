"""The diffusion transformer's cost, against the paper's table and the traced products."""

import jax
import jax.numpy as jnp
import pytest

from dew.nn.backbones.dit import SimpleDiT
from dew.testing.products import multiply_adds

WIDTHS = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
G = {
    ("S", 2): 6.06,
    ("B", 2): 23.01,
    ("L", 2): 80.70,
    ("XL", 2): 118.62,
    ("S", 4): 1.41,
    ("B", 4): 5.57,
    ("L", 4): 19.70,
    ("XL", 4): 29.04,
    ("S", 8): 0.36,
    ("B", 8): 1.42,
    ("L", 8): 5.01,
    ("XL", 8): 7.39,
}
"""Multiply-adds of 32x32 latents of 4 channels and 8 out, in 10^9."""


def paper(name, patch):
    width, layers, heads = WIDTHS[name]
    return SimpleDiT(
        patch_size=patch, hidden_size=width, num_layers=layers, num_heads=heads, output_channels=8
    )


@pytest.mark.parametrize(("name", "patch"), G)
def test_multiply_adds_are_the_gflops_of_the_paper(name, patch):
    assert paper(name, patch).forward_macs((32, 32, 4)) / 1e9 == pytest.approx(G[name, patch], abs=0.0051)


def test_sides_of_64_cost_what_the_paper_says():
    assert paper("XL", 2).forward_macs((64, 64, 4)) / 1e9 == pytest.approx(524.54, abs=0.0051)


def test_flops_are_twice_the_multiply_adds():
    assert 2 * paper("XL", 2).forward_macs((32, 32, 4)) / 1e9 == pytest.approx(237.2, abs=0.05)


def test_a_forward_pass_traces_to_the_counted_products():
    model = SimpleDiT(hidden_size=16, num_layers=2, num_heads=2, mlp_ratio=3, attention_impl="reference")
    arguments = (jnp.zeros((2, 8, 6, 5)), jnp.zeros((2,)), jnp.zeros((2, 7)))
    variables = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    assert multiply_adds(model.apply, variables, *arguments) == 2 * model.forward_macs((8, 6, 5), 7)
