"""Text as training data: tokenizers, reading and splitting files, and the cache of their ids."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ByteTokenizer": "dew.data.text.tokenizer:dew-lm",
        "HFTokenizer": "dew.data.text.tokenizer:dew-lm",
        "TextFiles": "dew.data.text.config:dew-lm",
        "Tokenizer": "dew.data.text.tokenizer:dew-lm",
        "load_tokenizer": "dew.data.text.tokenizer:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.data.text.config import TextFiles as TextFiles
    from dew.data.text.tokenizer import ByteTokenizer as ByteTokenizer
    from dew.data.text.tokenizer import HFTokenizer as HFTokenizer
    from dew.data.text.tokenizer import Tokenizer as Tokenizer
    from dew.data.text.tokenizer import load_tokenizer as load_tokenizer
