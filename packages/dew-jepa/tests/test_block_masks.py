"""Multi-block masks: the law of their sizes, where they lie, what is counted and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dew.objectives.jepa import MultiBlock, MultiBlockMask
from dew.objectives.jepa.block_sizes import block_sizes
from dew.objectives.jepa.masks import packed

GRID = (14, 14)
SMALL = MultiBlockMask((8, 8), MultiBlock())


def places(indices, valid, grid=(8, 8)):
    """Booleans over the grid from slots."""
    seen = np.zeros(np.prod(grid), bool)
    seen[np.asarray(indices)[np.asarray(valid)]] = True
    return seen.reshape(grid)


def sampled_sizes(draws):
    """Sizes as the paper's formula gives them, scale and aspect from two independent numbers."""
    random = np.random.default_rng(0)
    patches = np.floor(196 * random.uniform(0.15, 0.2, draws))
    aspect = random.uniform(0.75, 1.5, draws)
    return np.stack([np.rint(np.sqrt(patches * aspect)), np.rint(np.sqrt(patches / aspect))], 1).astype(int)


def test_the_law_of_the_sizes_is_that_of_independent_scale_and_aspect():
    law = block_sizes(GRID, (0.15, 0.2), (0.75, 1.5))
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    drawn, counts = np.unique(sampled_sizes(400_000), axis=0, return_counts=True)
    assert {tuple(size) for size in drawn.tolist()} == set(law)
    for size, count in zip(drawn.tolist(), counts, strict=True):
        assert law[tuple(size)] == pytest.approx(count / 400_000, abs=0.003)


def test_sizes_that_one_shared_number_cannot_reach_are_drawn():
    """With scale and aspect from one number, small blocks are wide and large ones tall."""
    law = block_sizes(GRID, (0.15, 0.2), (0.75, 1.5))
    shared = np.linspace(0, 1, 10_001)
    patches, aspect = np.floor(196 * (0.15 + 0.05 * shared)), 0.75 + 0.75 * shared
    reached = set(zip(np.rint(np.sqrt(patches * aspect)), np.rint(np.sqrt(patches / aspect)), strict=True))
    assert {(5, 6), (6, 5), (8, 5)} <= reached & set(law)
    assert law[(5, 7)] > 0.05 and (5, 7) not in reached


def test_one_block_in_ten_of_height_five_covers_the_last_row():
    fixed = MultiBlock(targets=4, target_scale=(25 / 196, 25 / 196), target_aspect=(1.0, 1.0))
    mask = MultiBlockMask(GRID, fixed)
    assert mask.target_slots == 25
    masks = jax.jit(lambda key: mask.draw(key, 5000))(jax.random.key(0))
    rows, columns = np.asarray(masks.targets) // 14, np.asarray(masks.targets) % 14
    for axis in (rows, columns):
        for border in (0, 13):
            share = (axis == border).any(-1).mean()
            assert share == pytest.approx(0.1, abs=0.009), border  # four deviations of 20,000 draws


def test_every_size_stands_anywhere_it_fits_and_comes_as_often_as_its_law_says():
    law = block_sizes((8, 8), (0.15, 0.2), (0.75, 1.5))
    masks = jax.jit(lambda key: SMALL.draw(key, 5000))(jax.random.key(3))
    rows, columns = (part.reshape(-1, part.shape[-1]) for part in np.divmod(np.asarray(masks.targets), 8))
    top, left = rows.min(1), columns.min(1)
    height, width = rows.max(1) - top + 1, columns.max(1) - left + 1
    for (tall, wide), chance in law.items():
        of_size = (height == tall) & (width == wide)
        assert of_size.mean() == pytest.approx(chance, abs=0.015)
        seen = np.zeros((9 - tall, 9 - wide))
        np.add.at(seen, (top[of_size], left[of_size]), 1)
        assert stats.chisquare(seen.ravel()).pvalue > 1e-4


def test_every_place_is_seen_and_every_place_is_predicted():
    masks = jax.jit(lambda key: SMALL.draw(key, 400))(jax.random.key(1))
    for indices, valid in ((masks.context, masks.context_valid), (masks.targets, masks.target_valid)):
        assert places(indices.reshape(-1), valid.reshape(-1)).all()


def test_a_target_is_one_whole_block_with_its_exact_count():
    masks = SMALL.draw(jax.random.key(2), 50)
    law = block_sizes((8, 8), (0.15, 0.2), (0.75, 1.5))
    for indices, valid in zip(
        masks.targets.reshape(200, -1), masks.target_valid.reshape(200, -1), strict=True
    ):
        seen = places(indices, valid)
        size = (int(seen.any(1).sum()), int(seen.any(0).sum()))
        assert size in law and seen.sum() == valid.sum() == size[0] * size[1]


def test_the_context_is_a_block_without_the_targets():
    masks = SMALL.draw(jax.random.key(3), 50)
    for row in range(50):
        context = places(masks.context[row], masks.context_valid[row])
        hidden = places(masks.targets[row].reshape(-1), masks.target_valid[row].reshape(-1))
        assert context.any() and not (context & hidden).any()
        assert context.sum() == masks.context_valid[row].sum()
        around = context | hidden
        top, bottom = np.flatnonzero(context.any(1))[[0, -1]]
        left, right = np.flatnonzero(context.any(0))[[0, -1]]
        assert around[top : bottom + 1, left : right + 1].all()


def test_a_bounded_context_keeps_any_of_its_patches_alike():
    """Not the first ones: then the bottom of the image would never be seen."""
    member = jnp.arange(20) % 2 == 0
    keys = jax.random.split(jax.random.key(4), 4000)
    chosen, valid = jax.vmap(lambda key: packed(member, jax.random.uniform(key, (20,)), 5))(keys)
    assert bool(valid.all())
    share = np.bincount(np.asarray(chosen).reshape(-1), minlength=20) / 4000
    np.testing.assert_allclose(share, np.where(np.asarray(member), 0.5, 0.0), atol=0.035)
    capped = MultiBlockMask((8, 8), MultiBlock(context_tokens=7))
    masks = jax.jit(lambda key: capped.draw(key, 400))(jax.random.key(5))
    assert masks.context.shape == (400, 7)
    assert places(masks.context.reshape(-1), masks.context_valid.reshape(-1)).all()


def test_unused_slots_repeat_a_used_place():
    indices, valid = packed(jnp.asarray([False, False, True, True]), jnp.linspace(0, 0.9, 4), 4)
    assert indices.tolist() == [2, 3, 2, 2] and valid.tolist() == [True, True, False, False]


def test_a_row_does_not_depend_on_the_rows_around_it():
    few, many = SMALL.draw(jax.random.key(6), 2), SMALL.draw(jax.random.key(6), 9)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:2]), few, many)
    assert not np.array_equal(many.targets[0], many.targets[1])


def test_a_grid_that_is_too_small_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"4 target blocks of up to 4 .* context block of 16 .* 4x4"):
        MultiBlockMask((4, 4), MultiBlock())
    with pytest.raises(
        ValueError, match=r"mask.context_scale=.* mask.context_aspect=.* block of 5x5 .* grid of 2x18"
    ):
        MultiBlock(context_scale=(0.7, 0.7)).build((2, 18))
    with pytest.raises(ValueError, match=r"mask.target_scale=.* block without a patch in a grid of 2x2"):
        MultiBlock().build((2, 2))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"target_scale": (0.3, 0.2)}, "mask.target_scale="),
        ({"context_scale": (0.5, 1.1)}, "mask.context_scale="),
        ({"target_aspect": (0.0, 1.0)}, "mask.target_aspect="),
        ({"context_aspect": (1.0, float("inf"))}, "mask.context_aspect="),
    ],
)
def test_bounds_out_of_order_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        MultiBlock(**fields)


@pytest.mark.parametrize("name", ["targets", "context_tokens"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=rf"mask.{name}=0"):
        MultiBlock(**{name: 0})
