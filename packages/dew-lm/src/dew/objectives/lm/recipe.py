"""`dew train lm`: from a configuration to a trained state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.config.names import run_directory
from dew.data.text import load_tokenizer
from dew.objectives.lm.config import LMRunConfig
from dew.objectives.lm.metrics import perplexity
from dew.objectives.lm.role_targets import refuse_missing_role
from dew.training.launch import say
from dew.training.runs import has_checkpoint
from dew.training.runtime import prepare_process

if TYPE_CHECKING:
    from dew.training.state import TrainState


def train(config: LMRunConfig) -> TrainState:
    """Tokenize, build and train as `config` says; perplexity is what validation reports.

    Raises:
        ValueError: settings that do not fit each other, or text that cannot be used.
        FileNotFoundError: the tokenizer or the text.
    """
    prepare_process(config.trainer)
    name = config.run_name("lm")
    started = has_checkpoint(config, name)
    # A run that goes on reads the tokenizer it keeps.
    directory = run_directory(config.trainer.checkpoint_dir, name)
    tokenizer = load_tokenizer((config.opened(directory) if started else config).tokenizer)
    config = config.resolved(tokenizer)
    objective = (config.rebuilt().opened(directory) if started else config).build()
    dataset = config.data.load(batch=config.trainer.batch_size, tokenize=tokenizer)
    if config.loss_role is not None:
        evaluates = config.trainer.eval_every is not None and dataset.val is not None
        refuse_missing_role(config.loss_role, dataset.kinds, evaluates=evaluates)
    for line in dataset.description:
        say(line)
    return config.train(
        objective,
        dataset,
        name=name,
        metrics=(perplexity(),),
        summary={"data": list(dataset.description)},
    )
