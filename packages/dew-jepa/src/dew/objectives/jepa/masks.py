"""Multi-block masks with static shapes.

Dimensions: B images, M target blocks of each, N patches of H rows and W columns, K context and
T target slots.

Every block's size is drawn from its exact law (`dew.objectives.jepa.block_sizes`) and its place evenly among
all that fit, so that the last row and column are as near as any. Slots beyond a row's own count are marked
invalid: no token is dropped to make the counts of a batch agree, and a row does not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from dew.objectives.jepa.block_sizes import Sizes, block_sizes
from dew.objectives.jepa.mask_config import MultiBlock


@struct.dataclass
class Masks:
    """Which patches are seen and which are predicted. Places count row by row.

    Attributes:
        context: [B, K] places of the context; an invalid slot repeats a valid one.
        context_valid: [B, K] booleans.
        targets: [B, M, T] places of each target block, likewise.
        target_valid: [B, M, T] booleans.
    """

    context: Int[Array, "B K"]
    context_valid: Bool[Array, "B K"]
    targets: Int[Array, "B M T"]
    target_valid: Bool[Array, "B M T"]


@dataclass(frozen=True)
class MultiBlockMask:
    """Draws masks over a grid.

    Attributes:
        grid: H and W.
        config: how many blocks, and how large.

    Raises:
        ValueError: a block does not fit the grid, or the targets could leave the smallest context block
            without a patch.
    """

    grid: tuple[int, int]
    config: MultiBlock = MultiBlock()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", tuple(self.grid))
        left = self._smallest_context
        if left < 1:
            smallest = min(rows * columns for rows, columns in self._context_sizes)
            raise ValueError(
                f"{self.config.targets} target blocks of up to {self.target_slots} patches can cover a "
                f"context block of {smallest} in a grid of {self.grid[0]}x{self.grid[1]}, which leaves no "
                "context; use smaller patches, or lower mask.targets or mask.target_scale"
            )

    @cached_property
    def target_slots(self) -> int:
        """T, the largest number of patches a target block can have."""
        return max(rows * columns for rows, columns in self._target_sizes)

    @cached_property
    def context_slots(self) -> int:
        """K, the largest number of context patches a row can have, within `context_tokens`."""
        largest = max(rows * columns for rows, columns in self._context_sizes)
        spared = self.grid[0] * self.grid[1] - min(rows * columns for rows, columns in self._target_sizes)
        most = min(largest, spared)
        return most if self.config.context_tokens is None else min(most, self.config.context_tokens)

    def draw(self, key: jax.Array, rows: int) -> Masks:
        """Masks of `rows` images; row i draws from `fold_in(key, i)` alone."""
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))
        return jax.vmap(self._row)(keys)

    @cached_property
    def _target_sizes(self) -> Sizes:
        config = self.config
        return block_sizes(self.grid, config.target_scale, config.target_aspect, called="mask.target_")

    @cached_property
    def _context_sizes(self) -> Sizes:
        config = self.config
        return block_sizes(self.grid, config.context_scale, config.context_aspect, called="mask.context_")

    @property
    def _smallest_context(self) -> int:
        smallest = min(rows * columns for rows, columns in self._context_sizes)
        return smallest - self.config.targets * self.target_slots

    def _row(self, key: jax.Array) -> Masks:
        # One call draws all of a row's numbers: the program of each is long, and compiling them takes longer
        # than the rest of the objective.
        patches, blocks = self.grid[0] * self.grid[1], self.config.targets + 1
        drawn = jax.random.uniform(key, (patches + 3 * blocks,))
        order, (context, *targets) = drawn[:patches], drawn[patches:].reshape(blocks, 3)
        covered = jax.vmap(lambda one: self._block(one, self._target_sizes))(jnp.stack(targets))
        seen = self._block(context, self._context_sizes) & ~covered.any(axis=0)
        context, context_valid = packed(seen, order, self.context_slots)
        in_order = jnp.linspace(0, 1, seen.size, endpoint=False)
        targets, target_valid = jax.vmap(lambda block: packed(block, in_order, self.target_slots))(covered)
        return Masks(context, context_valid, targets, target_valid)

    def _block(self, drawn: jax.Array, sizes: Sizes) -> jax.Array:
        """One block as booleans [N], from three numbers in [0, 1): its size's, its row's and its column's."""
        table = np.asarray(list(sizes), np.int32)
        bounds = np.cumsum(list(sizes.values()))
        size = jnp.searchsorted(jnp.asarray(bounds[:-1] / bounds[-1], jnp.float32), drawn[0], side="right")
        height, width = jnp.asarray(table)[size]
        top = evenly(drawn[1], self.grid[0] - height + 1)
        left = evenly(drawn[2], self.grid[1] - width + 1)
        row, column = jnp.asarray(np.indices(self.grid).reshape(2, -1))
        return (row >= top) & (row < top + height) & (column >= left) & (column < left + width)


def evenly(drawn: jax.Array, count: jax.Array) -> jax.Array:
    """Of the numbers 0 to `count - 1`, that of the part of [0, 1) that `drawn` lies in."""
    return jnp.minimum((drawn * count).astype(jnp.int32), count - 1)


def packed(member: jax.Array, order: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    """The places where `member` holds, in the order of `order`, in `slots` slots, and which slots are used.

    Args:
        member: [N] booleans, one at least.
        order: [N] in [0, 1).
        slots: an unused one repeats the first place.
    """
    places = jnp.argsort(jnp.where(member, order, 2.0))[:slots].astype(jnp.int32)
    valid = jnp.arange(slots) < member.sum()
    return jnp.where(valid, places, places[0]), valid
