__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Aux": "dew.objectives.base:dew-core",
        "Mean": "dew.objectives.base:dew-core",
        "Objective": "dew.objectives.base:dew-core",
        "Step": "dew.objectives.base:dew-core",
        "mean_loss": "dew.objectives.base:dew-core",
        "scalar_loss": "dew.objectives.base:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.objectives.base import Aux as Aux
    from dew.objectives.base import Mean as Mean
    from dew.objectives.base import Objective as Objective
    from dew.objectives.base import Step as Step
    from dew.objectives.base import mean_loss as mean_loss
    from dew.objectives.base import scalar_loss as scalar_loss
