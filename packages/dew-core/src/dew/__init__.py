__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Trainer": "dew.training:dew-core",
        "Checkpoints": "dew.training:dew-core",
        "MeshSpec": "dew.training.config:dew-core",
        "Condition": "dew.inputs.spec:dew-core",
        "Field": "dew.inputs.spec:dew-core",
        "InputSpec": "dew.inputs.spec:dew-core",
        "pipeline": "dew.inference.tasks:dew-inference",
    },
)

if TYPE_CHECKING:
    from dew.inference.tasks import pipeline as pipeline
    from dew.inputs.spec import Condition as Condition
    from dew.inputs.spec import Field as Field
    from dew.inputs.spec import InputSpec as InputSpec
    from dew.training import Checkpoints as Checkpoints
    from dew.training import Trainer as Trainer
    from dew.training.config import MeshSpec as MeshSpec
