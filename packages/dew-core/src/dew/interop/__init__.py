__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Pretrained": "dew.interop.pretrained:dew-core",
        "load_pretrained": "dew.interop.pretrained:dew-core",
        "save_pretrained_decoder": "dew.interop.decoders:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.interop.decoders import save_pretrained_decoder as save_pretrained_decoder
    from dew.interop.pretrained import Pretrained as Pretrained
    from dew.interop.pretrained import load_pretrained as load_pretrained
