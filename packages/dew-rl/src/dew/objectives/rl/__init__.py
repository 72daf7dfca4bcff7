"""Objectives that learn from rewards and from preferences, over a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.objectives.rl.artifacts import MeanReward as MeanReward
    from dew.objectives.rl.artifacts import RewardedTexts as RewardedTexts
    from dew.objectives.rl.dpo import DPOObjective as DPOObjective
    from dew.objectives.rl.dpo_config import DPORunConfig as DPORunConfig
    from dew.objectives.rl.grpo import GRPOObjective as GRPOObjective
    from dew.objectives.rl.grpo_config import GRPORunConfig as GRPORunConfig
    from dew.objectives.rl.policy_loss import PolicyLoss as PolicyLoss
    from dew.objectives.rl.preference_scores import PairScores as PairScores
    from dew.objectives.rl.responder import Responder as Responder
    from dew.objectives.rl.rewards import Checked as Checked
    from dew.objectives.rl.rewards import Reward as Reward
    from dew.objectives.rl.rollout import SampledRollout as SampledRollout
    from dew.objectives.rl.warm_start import WarmStart as WarmStart

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DPOObjective": "dew.objectives.rl.dpo:dew-rl",
        "DPORunConfig": "dew.objectives.rl.dpo_config:dew-rl",
        "GRPOObjective": "dew.objectives.rl.grpo:dew-rl",
        "GRPORunConfig": "dew.objectives.rl.grpo_config:dew-rl",
        "PolicyLoss": "dew.objectives.rl.policy_loss:dew-rl",
        "Responder": "dew.objectives.rl.responder:dew-rl",
        "SampledRollout": "dew.objectives.rl.rollout:dew-rl",
        "Checked": "dew.objectives.rl.rewards:dew-rl",
        "Reward": "dew.objectives.rl.rewards:dew-rl",
        "RewardedTexts": "dew.objectives.rl.artifacts:dew-rl",
        "MeanReward": "dew.objectives.rl.artifacts:dew-rl",
        "PairScores": "dew.objectives.rl.preference_scores:dew-rl",
        "WarmStart": "dew.objectives.rl.warm_start:dew-rl",
    },
)
