"""The settings of a policy's loss over judged responses. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dew.rl.names import AggregationName, KLName, RatioName


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """How advantages become a loss.

    With r the ratio of the policy to the one that began the update, A the advantage, d the estimated
    divergence from the reference and w a correction weight, a token's loss is
    `w clipped(r, A) + kl_weight d`.

    Attributes:
        ratio: one ratio for each token, or one for each response.
        clip_low: how far below 1 a bad token's ratio is followed.
        clip_high: how far above 1 a good token's ratio is followed.
        dual_clip: the ratio up to which a bad token is pushed away; unset follows it everywhere.
        aggregation: how token losses become one number.
        kl: estimator of the divergence.
        kl_weight: of the divergence; 0 only reports it, unset keeps no reference.
        reading: `raw` compares the model's own likelihoods; `sampled` divides the logits by the temperature
            that drew.
        on_policy: the responses come from the parameters under update, so r is exactly 1; off takes the
            recorded likelihoods as the policy that began the update.
        correction: greatest weight w of a token, old / behavior; unset weighs nothing.

    Raises:
        ValueError: a number out of its range, or a correction of likelihoods that are read as sampled.
    """

    ratio: RatioName = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: AggregationName = "token_mean"
    kl: KLName = "k3"
    kl_weight: float | None = 0.001
    reading: Literal["raw", "sampled"] = "raw"
    on_policy: bool = True
    correction: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1:
            raise ValueError(f"loss.clip_low={self.clip_low} must lie in [0, 1]")
        if not self.clip_high >= 0:
            raise ValueError(f"loss.clip_high={self.clip_high} must be 0 or more")
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise ValueError(
                f"loss.dual_clip={self.dual_clip} must be above 1 + clip_high = {1 + self.clip_high}; "
                "unset it to leave it out"
            )
        if self.kl_weight is not None and not 0 <= self.kl_weight < float("inf"):
            raise ValueError(
                f"loss.kl_weight={self.kl_weight} must be 0 or more; unset it to keep no reference"
            )
        if self.correction is not None and not self.correction >= 1:
            raise ValueError(
                f"loss.correction={self.correction} must be at least 1; unset it to weigh nothing"
            )
        if self.correction is not None and self.reading == "sampled":
            raise ValueError(
                f"loss.correction={self.correction} weighs old / behavior, which is 1 where loss.reading="
                "'sampled' takes the behavior for old; use one of the two"
            )
