"""Contract tests for the parts of a plugin: subclass one in a test module and say what is under test.

    from dew.testing import ObjectiveContract

    class TestMyObjective(ObjectiveContract):
        def objective(self):
            return MyObjective(TinyModel())

        def batch(self, rows):
            return {"x": numpy.ones((rows, 3)), "y": numpy.ones(rows)}

pytest collects the inherited tests. They need no fixture, no network and no accelerator.
"""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ComponentContract": "dew.testing.components:dew-core",
        "ConfigContract": "dew.testing.configs:dew-core",
        "DatasetContract": "dew.testing.datasets:dew-core",
        "DatasetExample": "dew.testing.examples:dew-core",
        "Example": "dew.testing.examples:dew-core",
        "FunctionExample": "dew.testing.examples:dew-core",
        "MetricContract": "dew.testing.metrics:dew-core",
        "MetricExample": "dew.testing.examples:dew-core",
        "ModelExample": "dew.testing.examples:dew-core",
        "ObjectiveContract": "dew.testing.objectives:dew-core",
        "ObjectiveExample": "dew.testing.examples:dew-core",
        "PluginContract": "dew.testing.plugins:dew-core",
        "RecipeExample": "dew.testing.examples:dew-core",
        "ScheduleExample": "dew.testing.examples:dew-core",
        "in_memory": "dew.testing.datasets:dew-core",
        "registered": "dew.testing.components:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.testing.components import ComponentContract as ComponentContract
    from dew.testing.components import registered as registered
    from dew.testing.configs import ConfigContract as ConfigContract
    from dew.testing.datasets import DatasetContract as DatasetContract
    from dew.testing.datasets import in_memory as in_memory
    from dew.testing.examples import DatasetExample as DatasetExample
    from dew.testing.examples import Example as Example
    from dew.testing.examples import FunctionExample as FunctionExample
    from dew.testing.examples import MetricExample as MetricExample
    from dew.testing.examples import ModelExample as ModelExample
    from dew.testing.examples import ObjectiveExample as ObjectiveExample
    from dew.testing.examples import RecipeExample as RecipeExample
    from dew.testing.examples import ScheduleExample as ScheduleExample
    from dew.testing.metrics import MetricContract as MetricContract
    from dew.testing.objectives import ObjectiveContract as ObjectiveContract
    from dew.testing.plugins import PluginContract as PluginContract
