__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(__name__, {"save_pretrained_decoder": "dew.interop.decoders:dew-lm"})

if TYPE_CHECKING:
    from dew.interop.decoders import save_pretrained_decoder as save_pretrained_decoder
