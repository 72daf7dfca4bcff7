"""Prompts and drawn responses as packed rows of one width.

Dimensions: R rows, P prompt slots, N response slots, S = P + N - 1 targets. A packed row holds the prompt's
real ids, then the response, then filling: position 0 is the first real id whatever padding the prompts had.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

type Rows = Int[np.ndarray, "R P"]


class Packed(NamedTuple):
    """Packed rows and where their responses stand.

    Attributes:
        text: [R, S + 1] ids.
        mask: [R, S] float32, 1 for the targets that belong to the response.
        slots: [R, N], the target slot of each response token.
    """

    text: Int[np.ndarray, "R S1"]
    mask: Float[np.ndarray, "R S"]
    slots: Int[np.ndarray, "R N"]


def pack_rows(
    prompts: Rows, prompt_mask: Rows, responses: Int[np.ndarray, "R N"], lengths: Int[np.ndarray, " R"]
) -> Packed:
    """Pack each row's real prompt ids and the first `lengths` ids of its response.

    The mask follows from the lengths alone: an end token that was drawn is a target, also where filling has
    its id.
    """
    rows, width = prompts.shape
    budget = responses.shape[1]
    real = prompt_mask != 0
    order = np.argsort(~real, axis=1, kind="stable")
    start = real.sum(axis=1)
    text = np.zeros((rows, width + budget), np.int32)
    text[:, :width] = np.where(
        np.arange(width) < start[:, None], np.take_along_axis(prompts, order, axis=1), 0
    )
    drawn = np.arange(budget) < np.asarray(lengths)[:, None]
    slots = start[:, None] + np.arange(budget)
    at = np.arange(rows)[:, None]
    text[at, slots] = np.where(drawn, responses, 0)
    mask = np.zeros((rows, width + budget - 1), np.float32)
    mask[at, slots - 1] = drawn
    return Packed(text, mask, slots - 1)


def at_targets(
    values: Float[np.ndarray, "R N"], packed: Packed, lengths: Int[np.ndarray, " R"]
) -> Float[np.ndarray, "R S"]:
    """`values` of response tokens at their target slots, zero elsewhere."""
    placed = np.zeros(packed.mask.shape, np.float32)
    drawn = np.arange(values.shape[1]) < np.asarray(lengths)[:, None]
    placed[np.arange(len(values))[:, None], packed.slots] = np.where(drawn, values, 0)
    return placed
