"""Recorded log probabilities that contradict themselves, refused before they reach a loss."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_log_probs(name: str, log_probs: Any, mask: Any) -> None:
    """Refuse a token that was drawn with probability 0 or above 1. Runs on the host.

    Args:
        name: the field, for the message.
        log_probs: [B, S]; NaN, for a token nobody recorded, passes.
        mask: [B, S], the tokens that were drawn.

    Raises:
        ValueError: the first such token, its row and slot, and the value.
    """
    values, drawn = np.asarray(log_probs, np.float32), np.asarray(mask, bool)
    wrong = np.argwhere(drawn & (np.isneginf(values) | (values > 0)))
    if len(wrong):
        row, slot = (int(index) for index in wrong[0])
        raise ValueError(
            f"{name}[{row}, {slot}]={values[row, slot]} is no log probability of a token that was drawn; "
            "it must be finite and at most 0: record it from the distribution the token was drawn from"
        )
