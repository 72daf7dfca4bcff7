"""Rows times the weight of their group, against each group's own product and `jax.lax.ragged_dot`."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.grouped_product import LEAST_TILE, MOST_TILE, grouped_product, tile_rows

LOADS = {
    "even": [5, 5, 5, 5],
    "one has all": [0, 0, 300, 0],
    "empty at both ends": [0, 7, 13, 0],
    "one row each": [1, 1, 1, 1],
    "more than a tile": [200, 3, 140, 129],
    "none": [0, 0, 0, 0],
}


def operands(sizes, unused=0, width=6, columns=5):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(sum(sizes) + unused, width)).astype(np.float32)
    weights = rng.normal(size=(len(sizes), width, columns)).astype(np.float32)
    return jnp.asarray(rows), jnp.asarray(weights), jnp.asarray(sizes, jnp.int32)


def each_groups_own(rows, weights, sizes):
    bounds = itertools.pairwise(np.cumsum([0, *sizes]))
    parts = [
        np.asarray(rows[a:b], np.float64) @ np.asarray(weights[g], np.float64)
        for g, (a, b) in enumerate(bounds)
    ]
    return np.concatenate(parts)


def with_every_weight(rows, weights, sizes):
    mine = jnp.repeat(jnp.eye(len(sizes)), sizes, axis=0, total_repeat_length=rows.shape[0])
    return jnp.einsum("nd,ng,gdf->nf", rows, mine, weights)


@pytest.mark.parametrize("unused", [0, 9])
@pytest.mark.parametrize("sizes", LOADS.values(), ids=LOADS)
def test_a_row_meets_its_groups_weight(sizes, unused):
    rows, weights, held = operands(sizes, unused)
    found = jax.jit(grouped_product)(rows, weights, held)
    assert found.shape == (rows.shape[0], weights.shape[-1])
    np.testing.assert_allclose(found[: sum(sizes)], each_groups_own(rows, weights, sizes), atol=1e-5)


@pytest.mark.parametrize("sizes", LOADS.values(), ids=LOADS)
def test_gradients_are_ragged_dots(sizes):
    rows, weights, held = operands(sizes, unused=9)
    weight = jax.random.normal(jax.random.key(1), (rows.shape[0], weights.shape[-1]))
    read = (jnp.arange(rows.shape[0]) < sum(sizes))[:, None]

    def gradients(product):
        def read_rows(rows, weights):
            return jnp.sum(jnp.where(read, jnp.sin(product(rows, weights, held)) * weight, 0))

        return jax.jit(jax.grad(read_rows, (0, 1)))(rows, weights)

    for found, expected in zip(gradients(grouped_product), gradients(jax.lax.ragged_dot), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_rows_of_no_group_reach_no_gradient_whatever_they_hold():
    rows, weights, held = operands([3, 0, 4, 2], unused=5)
    rows = rows.at[9:].set(jnp.nan)

    def read(rows, weights):
        return jnp.sum(grouped_product(rows, weights, held)[:9] ** 2)

    of_rows, of_weights = jax.grad(read, (0, 1))(rows, weights)
    assert np.isfinite(of_weights).all()
    np.testing.assert_array_equal(of_weights[1], 0)
    assert np.isfinite(of_rows[:9]).all()


def test_a_gradient_has_a_gradient():
    rows, weights, held = operands([3, 0, 4, 2])

    def penalty(product):
        def inner(rows, weights):
            return jnp.sum(jnp.sin(product(rows, weights, held)))

        def outer(rows, weights):
            return sum(jnp.sum(part**2) for part in jax.grad(inner, (0, 1))(rows, weights))

        return jax.jit(jax.grad(outer, (0, 1)))(rows, weights)

    # `jax.lax.ragged_dot` has no second gradient.
    for found, expected in zip(penalty(grouped_product), penalty(with_every_weight), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_weights_gradient_sums_its_tiles_in_float32():
    rows = jax.random.normal(jax.random.key(0), (1024, 16), jnp.bfloat16)
    weights, sizes = jnp.ones((1, 16, 1), jnp.bfloat16), jnp.asarray([1024], jnp.int32)

    def total(weights):
        return jnp.sum(grouped_product(rows, weights, sizes).astype(jnp.float32) * 0.25)

    gradient = jax.grad(total)(weights)
    assert gradient.dtype == jnp.bfloat16
    expected = 0.25 * np.asarray(rows, np.float64).sum(0)
    np.testing.assert_allclose(np.asarray(gradient[0, :, 0], np.float64), expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "groups", "tile"),
    [(2, 8, 2), (16, 8, LEAST_TILE), (256, 8, 32), (300, 8, 64), (4096, 8, MOST_TILE)],
)
def test_a_tile_holds_an_average_group(rows, groups, tile):
    assert tile_rows(rows, groups) == tile
