"""Patches of images and the codes of their places."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.patches import patchify, sincos_positions, unpatchify


def test_patches_run_row_by_row():
    images = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    patches = np.asarray(patchify(jnp.asarray(images), 2))
    assert patches.shape == (2, 6, 12)
    for place in range(6):
        row, column = divmod(place, 3)
        expected = images[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(2, 12)
        np.testing.assert_array_equal(patches[:, place], expected)


def test_patches_come_back_where_they_were():
    images = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    np.testing.assert_array_equal(unpatchify(patchify(images, 2), (2, 3), 2), images)


def test_position_codes_are_sines_and_cosines_of_row_and_column():
    codes = sincos_positions((3, 5), 8)
    row, column = 2, 3
    angles = np.asarray([1.0, 0.01])
    parts = [np.sin(row * angles), np.cos(row * angles), np.sin(column * angles), np.cos(column * angles)]
    np.testing.assert_allclose(codes[row * 5 + column], np.concatenate(parts), atol=1e-6)


def test_sides_and_widths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="patch_size=3 must divide the sample's sides, 4 and 6"):
        patchify(jnp.zeros((1, 4, 6, 1)), 3)
    with pytest.raises(ValueError, match="width=6 must be a multiple of 4"):
        sincos_positions((1, 1), 6)
