__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Dataset": "dew.data.dataset:dew-core",
        "DataPartition": "dew.data.dataset:dew-core",
        "DataMixture": "dew.data.mixture:dew-core",
        "DatasetSpec": "dew.data.config:dew-core",
        "Loading": "dew.data.config:dew-core",
        "Ramp": "dew.data.config:dew-core",
        "Digits": "dew.data.images:dew-core",
        "ImageFolder": "dew.data.images:dew-core",
        "MNIST5k": "dew.data.images:dew-core",
        "OxfordFlowers": "dew.data.images:dew-core",
        "Textures": "dew.data.images:dew-core",
        "ChatMessages": "dew.data.chat:dew-lm",
        "PackedTokens": "dew.data.tokens:dew-lm",
        "PreferencePairs": "dew.data.chat:dew-lm",
        "Prompts": "dew.data.chat:dew-lm",
        "TokenBytes": "dew.data.tokens:dew-lm",
        "TokenColumn": "dew.data.tokens:dew-lm",
        "TokenRecords": "dew.data.tokens:dew-lm",
        "TokenSource": "dew.data.tokens:dew-lm",
        "TokenWindows": "dew.data.tokens:dew-lm",
        "ByteTokenizer": "dew.data.text:dew-lm",
        "HFTokenizer": "dew.data.text:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.data.chat import ChatMessages as ChatMessages
    from dew.data.chat import PreferencePairs as PreferencePairs
    from dew.data.chat import Prompts as Prompts
    from dew.data.config import DatasetSpec as DatasetSpec
    from dew.data.config import Loading as Loading
    from dew.data.config import Ramp as Ramp
    from dew.data.dataset import DataPartition as DataPartition
    from dew.data.dataset import Dataset as Dataset
    from dew.data.images import Digits as Digits
    from dew.data.images import ImageFolder as ImageFolder
    from dew.data.images import MNIST5k as MNIST5k
    from dew.data.images import OxfordFlowers as OxfordFlowers
    from dew.data.images import Textures as Textures
    from dew.data.mixture import DataMixture as DataMixture
    from dew.data.text import ByteTokenizer as ByteTokenizer
    from dew.data.text import HFTokenizer as HFTokenizer
    from dew.data.tokens import PackedTokens as PackedTokens
    from dew.data.tokens import TokenBytes as TokenBytes
    from dew.data.tokens import TokenColumn as TokenColumn
    from dew.data.tokens import TokenRecords as TokenRecords
    from dew.data.tokens import TokenSource as TokenSource
    from dew.data.tokens import TokenWindows as TokenWindows
