"""The Trainer and what it is built from."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Checkpoints": "dew.training.checkpoints:dew-core",
        "DEFAULT_RULES": "dew.training.config:dew-core",
        "Layout": "dew.training.config:dew-core",
        "MeshSpec": "dew.training.config:dew-core",
        "TrainState": "dew.training.state:dew-core",
        "Trainer": "dew.training.trainer:dew-core",
        "build_mesh": "dew.training.mesh:dew-core",
        "data_partition": "dew.training.mesh:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.training.checkpoints import Checkpoints as Checkpoints
    from dew.training.config import DEFAULT_RULES as DEFAULT_RULES
    from dew.training.config import Layout as Layout
    from dew.training.config import MeshSpec as MeshSpec
    from dew.training.mesh import build_mesh as build_mesh
    from dew.training.mesh import data_partition as data_partition
    from dew.training.state import TrainState as TrainState
    from dew.training.trainer import Trainer as Trainer
