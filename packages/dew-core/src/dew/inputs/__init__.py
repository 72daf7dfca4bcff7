__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Condition": "dew.inputs.spec:dew-core",
        "Field": "dew.inputs.spec:dew-core",
        "InputSpec": "dew.inputs.spec:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.inputs.spec import Condition as Condition
    from dew.inputs.spec import Field as Field
    from dew.inputs.spec import InputSpec as InputSpec
