"""Typed configuration of a training run: what is built, what it is fed, how it is optimized and how it
runs."""

from dew.config.arguments import JsonDict as JsonDict
from dew.config.arguments import json_list_argument as json_list_argument
from dew.config.model import ModelConfig as ModelConfig
from dew.config.optim import OptimConfig as OptimConfig
from dew.config.run import DataSpec as DataSpec
from dew.config.run import RunConfig as RunConfig
from dew.config.trainer import TrainerConfig as TrainerConfig
from dew.config.trainer import Wandb as Wandb
from dew.training.optim.config import ScheduleSpec as ScheduleSpec
