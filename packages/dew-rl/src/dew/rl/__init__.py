"""Reinforcement learning and preferences as array mathematics: advantages, ratios, losses, their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Advantages": "dew.rl.advantages:dew-rl",
        "group_advantages": "dew.rl.advantages:dew-rl",
        "mean_advantages": "dew.rl.advantages:dew-rl",
        "rloo_advantages": "dew.rl.advantages:dew-rl",
        "gdpo_advantages": "dew.rl.rewards:dew-rl",
        "summed_rewards": "dew.rl.rewards:dew-rl",
        "Generalized": "dew.rl.generalized:dew-rl",
        "gae": "dew.rl.generalized:dew-rl",
        "terminal_rewards": "dew.rl.generalized:dew-rl",
        "whiten": "dew.rl.generalized:dew-rl",
        "PolicyRatio": "dew.rl.ratio:dew-rl",
        "policy_ratio": "dew.rl.ratio:dew-rl",
        "Surrogate": "dew.rl.surrogate:dew-rl",
        "clipped_surrogate": "dew.rl.surrogate:dew-rl",
        "Divergence": "dew.rl.kl:dew-rl",
        "kl_estimates": "dew.rl.kl:dew-rl",
        "aggregate": "dew.rl.aggregation:dew-rl",
        "LogRatios": "dew.rl.preference:dew-rl",
        "preference_losses": "dew.rl.preference:dew-rl",
        "response_log_ratios": "dew.rl.preference:dew-rl",
        "Correction": "dew.rl.correction:dew-rl",
        "off_policy_rows": "dew.rl.correction:dew-rl",
        "off_policy_weights": "dew.rl.correction:dew-rl",
        "check_log_probs": "dew.rl.records:dew-rl",
        "AdvantageName": "dew.rl.names:dew-rl",
        "AggregationName": "dew.rl.names:dew-rl",
        "KLName": "dew.rl.names:dew-rl",
        "NoSpread": "dew.rl.names:dew-rl",
        "PreferenceName": "dew.rl.names:dew-rl",
        "RatioName": "dew.rl.names:dew-rl",
    },
)

if TYPE_CHECKING:
    from dew.rl.advantages import Advantages as Advantages
    from dew.rl.advantages import group_advantages as group_advantages
    from dew.rl.advantages import mean_advantages as mean_advantages
    from dew.rl.advantages import rloo_advantages as rloo_advantages
    from dew.rl.aggregation import aggregate as aggregate
    from dew.rl.correction import Correction as Correction
    from dew.rl.correction import off_policy_rows as off_policy_rows
    from dew.rl.correction import off_policy_weights as off_policy_weights
    from dew.rl.generalized import Generalized as Generalized
    from dew.rl.generalized import gae as gae
    from dew.rl.generalized import terminal_rewards as terminal_rewards
    from dew.rl.generalized import whiten as whiten
    from dew.rl.kl import Divergence as Divergence
    from dew.rl.kl import kl_estimates as kl_estimates
    from dew.rl.names import AdvantageName as AdvantageName
    from dew.rl.names import AggregationName as AggregationName
    from dew.rl.names import KLName as KLName
    from dew.rl.names import NoSpread as NoSpread
    from dew.rl.names import PreferenceName as PreferenceName
    from dew.rl.names import RatioName as RatioName
    from dew.rl.preference import LogRatios as LogRatios
    from dew.rl.preference import preference_losses as preference_losses
    from dew.rl.preference import response_log_ratios as response_log_ratios
    from dew.rl.ratio import PolicyRatio as PolicyRatio
    from dew.rl.ratio import policy_ratio as policy_ratio
    from dew.rl.records import check_log_probs as check_log_probs
    from dew.rl.rewards import gdpo_advantages as gdpo_advantages
    from dew.rl.rewards import summed_rewards as summed_rewards
    from dew.rl.surrogate import Surrogate as Surrogate
    from dew.rl.surrogate import clipped_surrogate as clipped_surrogate
