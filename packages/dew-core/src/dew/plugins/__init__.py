__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CONTRACT": "dew.plugins.component:dew-core",
        "Component": "dew.plugins.component:dew-core",
        "Run": "dew.plugins.hooks:dew-core",
        "hookimpl": "dew.plugins.hooks:dew-core",
        "lifecycle_tracker": "dew.plugins.lifecycle:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.plugins.component import CONTRACT as CONTRACT
    from dew.plugins.component import Component as Component
    from dew.plugins.hooks import Run as Run
    from dew.plugins.hooks import hookimpl as hookimpl
    from dew.plugins.lifecycle import lifecycle_tracker as lifecycle_tracker
