"""Optimizers, learning-rate schedules and parameter groups."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Cosine": "dew.training.optim.config:dew-core",
        "Linear": "dew.training.optim.config:dew-core",
        "ParamGroup": "dew.training.optim.config:dew-core",
        "Power": "dew.training.optim.config:dew-core",
        "ScheduleSpec": "dew.training.optim.config:dew-core",
        "axis_names": "dew.training.optim.matrices:dew-core",
        "mup_param_groups": "dew.training.optim.config:dew-core",
        "bf16_moments": "dew.training.optim.moments:dew-core",
        "build_optimizer": "dew.training.optim.build:dew-core",
        "build_schedule": "dew.training.optim.build:dew-core",
        "qk_clip": "dew.training.optim.qk_clip:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.training.optim.build import build_optimizer as build_optimizer
    from dew.training.optim.build import build_schedule as build_schedule
    from dew.training.optim.config import Cosine as Cosine
    from dew.training.optim.config import Linear as Linear
    from dew.training.optim.config import ParamGroup as ParamGroup
    from dew.training.optim.config import Power as Power
    from dew.training.optim.config import ScheduleSpec as ScheduleSpec
    from dew.training.optim.config import mup_param_groups as mup_param_groups
    from dew.training.optim.matrices import axis_names as axis_names
    from dew.training.optim.moments import bf16_moments as bf16_moments
    from dew.training.optim.qk_clip import qk_clip as qk_clip
