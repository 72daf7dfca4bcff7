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
        "ConfigContract": "dew.testing.configs:dew-core",
        "DatasetContract": "dew.testing.datasets:dew-core",
        "MetricContract": "dew.testing.metrics:dew-core",
        "ObjectiveContract": "dew.testing.objectives:dew-core",
        "PluginContract": "dew.testing.plugins:dew-core",
        "in_memory": "dew.testing.datasets:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.testing.configs import ConfigContract as ConfigContract
    from dew.testing.datasets import DatasetContract as DatasetContract
    from dew.testing.datasets import in_memory as in_memory
    from dew.testing.metrics import MetricContract as MetricContract
    from dew.testing.objectives import ObjectiveContract as ObjectiveContract
    from dew.testing.plugins import PluginContract as PluginContract
