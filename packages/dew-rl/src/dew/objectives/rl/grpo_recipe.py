"""`dew train grpo`: from a configuration to a policy that earns its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.data.text import load_tokenizer
from dew.objectives.rl.artifacts import MeanReward
from dew.objectives.rl.grpo_config import GRPORunConfig
from dew.objectives.rl.responder import refuse_pool
from dew.objectives.rl.warm_start import has_begun
from dew.training.runtime import prepare_process

if TYPE_CHECKING:
    from dew.data.text import Tokenizer
    from dew.objectives.base import Variables
    from dew.training.state import TrainState


def train(config: GRPORunConfig) -> TrainState:
    """Start from the warm start, then draw, judge and update as `config` says.

    A run that has a checkpoint goes on from it, without the warm start.

    Raises:
        NotImplementedError: several processes.
        ValueError: settings that do not fit each other.
        FileNotFoundError: the tokenizer.
    """
    prepare_process(config.trainer)
    refuse_pool()
    tokenizer = load_tokenizer(config.tokenizer)
    config = config.resolved(tokenizer)
    name = config.run_name("grpo")
    dataset = config.data.load(batch=config.trainer.batch_size, tokenize=tokenizer)
    config.build()  # what does not fit is refused before the warm start
    start = None if has_begun(config, name) else started(config, tokenizer)
    objective = config.build(variables=start)
    rollout = config.rollout(objective)
    return config.train(objective, dataset, name=name, metrics=(MeanReward(),), rollout=rollout)


def started(config: GRPORunConfig, tokenizer: Tokenizer) -> Variables | None:
    """The policy after the warm start; None where there is none."""
    warm = config.warm_start
    if not warm.steps:
        return None
    ends = config.sampling.eos_ids[:1]
    examples = config.prompts.form(warm.rows, seed=config.trainer.seed)
    rows = [[*tokenizer.encode(prompt), *tokenizer.encode(answer), *ends] for prompt, answer in examples]
    return warm.variables(config.model.build(), rows, config.trainer)
