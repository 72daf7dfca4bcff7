"""The closed sets of values that the functions of this package take. Importing it imports no JAX."""

from __future__ import annotations

from typing import Literal

AdvantageName = Literal["group", "mean", "rloo"]
"""Group-standardised (GRPO), group mean subtracted (Dr.GRPO), mean of the others subtracted (RLOO)."""

NoSpread = Literal["keep", "drop"]
"""Whether a group of equal rewards keeps its mass in the loss."""

RatioName = Literal["token", "sequence", "sequence_token"]
"""A ratio for each token, one for each row, or one for each row whose gradient runs through each token."""

KLName = Literal["k1", "k2", "k3", "k1+", "k3+"]
"""Estimators of a divergence; a plus keeps the value and takes k2's gradient."""

AggregationName = Literal[
    "token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"
]
"""How token losses become one number."""

PreferenceName = Literal["sigmoid", "hinge", "ipo"]
"""Losses over pairs of a chosen and a rejected response."""

LevelName = Literal["token", "sequence"]
"""Whether a correction weighs tokens one by one or whole rows."""

CorrectionName = Literal["truncate", "mask"]
"""Whether a weight outside its bounds is cut to them or set to zero."""
