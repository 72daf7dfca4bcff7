"""What dew-rl adds."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
GRPO_CONFIG = "dew.objectives.rl.grpo_config:GRPORunConfig"
DPO_CONFIG = "dew.objectives.rl.dpo_config:DPORunConfig"
TEXT_TASK = "dew.inference.text:TextGeneration"
TEXT_OPTIONS = "dew.inference.text.options:TextOptions"


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-rl."""
    yield Component(
        "recipe",
        "grpo",
        "dew.objectives.rl.grpo_recipe:train",
        "Train a language model on a checker's rewards: the last digit of a sum.",
        config=GRPO_CONFIG,
    )
    yield Component(
        "objective",
        "grpo",
        "dew.objectives.rl:GRPOObjective",
        "Policy optimization over groups of responses to a prompt.",
        config=GRPO_CONFIG,
    )
    yield Component(
        "task",
        "grpo",
        TEXT_TASK,
        "Continue text with the policy that a reward trained.",
        config=TEXT_OPTIONS,
    )
    yield Component(
        "dataset",
        "last_digit",
        "dew.data.arithmetic.config:LastDigit",
        "Prompts a+b= over two digits; the answer is the sum's last digit.",
    )
    yield Component(
        "metric", "reward", "dew.objectives.rl:MeanReward", "Mean reward of a policy's responses."
    )
    yield Component(
        "recipe",
        "dpo",
        "dew.objectives.rl.dpo_recipe:train",
        "Train a language model on preferences: right sums over wrong ones.",
        config=DPO_CONFIG,
    )
    yield Component(
        "objective",
        "dpo",
        "dew.objectives.rl:DPOObjective",
        "Direct preference optimization against a frozen reference.",
        config=DPO_CONFIG,
    )
    yield Component(
        "task",
        "dpo",
        TEXT_TASK,
        "Continue text with the policy that preferences trained.",
        config=TEXT_OPTIONS,
    )
    yield Component(
        "dataset",
        "sum_pairs",
        "dew.data.preferences.config:SumPairs",
        "Sums below 200, each right answer preferred to wrong ones.",
    )
    yield Component(
        "metric",
        "preference_accuracy",
        "dew.objectives.rl.preference_scores:preference_accuracy",
        "How often the chosen response has the higher implicit reward.",
    )
