"""`dew train dpo`: from a configuration to a policy that prefers what was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.data.text import Tokenizer, load_tokenizer
from dew.objectives.rl.dpo_config import DPORunConfig
from dew.objectives.rl.preference_scores import preference_metrics
from dew.objectives.rl.warm_start import has_begun
from dew.training.batch_fields import require_fields_of
from dew.training.launch import say
from dew.training.runtime import prepare_process

if TYPE_CHECKING:
    from dew.objectives.base import Variables
    from dew.training.state import TrainState


def train(config: DPORunConfig) -> TrainState:
    """Start the policy, freeze its copy as the reference, and train on the pairs as `config` says.

    Raises:
        ValueError: settings that do not fit each other.
        FileNotFoundError: the tokenizer, the data or the published model.
    """
    prepare_process(config.trainer)
    tokenizer = load_tokenizer(config.tokenizer)
    config = config.resolved(tokenizer)
    name = config.run_name("dpo")
    dataset = config.data.load(batch=config.trainer.batch_size, tokenize=tokenizer)
    for line in dataset.description:
        say(line)
    begun = has_begun(config, name)
    objective = (config.rebuilt() if begun else config).build()
    require_fields_of(objective, dataset)  # what does not fit is refused before the supervised start
    if config.warm_start.steps and not begun:
        objective = config.build(variables=started_policy(config, tokenizer))
    return config.train(
        objective,
        dataset,
        name=name,
        metrics=preference_metrics(),
        summary={"data": list(dataset.description)},
    )


def started_policy(config: DPORunConfig, tokenizer: Tokenizer) -> Variables:
    """The policy after the supervised start of `config`, which reads responses that have the form alone."""
    rows = [[*tokenizer.encode(prompt), *tokenizer.encode(response)] for prompt, response in config.form()]
    return config.warm_start.variables(config.model.build(), rows, config.trainer)
