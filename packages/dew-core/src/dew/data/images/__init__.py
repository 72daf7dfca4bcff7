"""Images as training data: sets that Python packages ship, folders of pictures, and decoding them."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Digits": "dew.data.images.config:dew-core",
        "ImageFolder": "dew.data.images.config:dew-core",
        "ImageSpec": "dew.data.images.config:dew-core",
        "MNIST5k": "dew.data.images.config:dew-core",
        "OxfordFlowers": "dew.data.images.config:dew-core",
        "Textures": "dew.data.images.config:dew-core",
        "decode_image": "dew.data.images.decoding:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.data.images.config import Digits as Digits
    from dew.data.images.config import ImageFolder as ImageFolder
    from dew.data.images.config import ImageSpec as ImageSpec
    from dew.data.images.config import MNIST5k as MNIST5k
    from dew.data.images.config import OxfordFlowers as OxfordFlowers
    from dew.data.images.config import Textures as Textures
    from dew.data.images.decoding import decode_image as decode_image
