"""Token corpora on disk: their layout, the sources that read them and the rows a run trains on."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "PackingCounts": "dew.data.tokens.packing:dew-lm",
        "TokenColumn": "dew.data.tokens.records:dew-lm",
        "TokenRecords": "dew.data.tokens.records:dew-lm",
        "CorpusWriter": "dew.data.tokens.store:dew-lm",
        "PackedRows": "dew.data.tokens.packed:dew-lm",
        "PackedTokens": "dew.data.tokens.config:dew-lm",
        "PackingPlan": "dew.data.tokens.packing:dew-lm",
        "TokenBytes": "dew.data.tokens.source:dew-lm",
        "TokenSource": "dew.data.tokens.source:dew-lm",
        "TokenWindows": "dew.data.tokens.config:dew-lm",
        "Windows": "dew.data.tokens.source:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.data.tokens.config import PackedTokens as PackedTokens
    from dew.data.tokens.config import TokenWindows as TokenWindows
    from dew.data.tokens.packed import PackedRows as PackedRows
    from dew.data.tokens.packing import PackingCounts as PackingCounts
    from dew.data.tokens.packing import PackingPlan as PackingPlan
    from dew.data.tokens.records import TokenColumn as TokenColumn
    from dew.data.tokens.records import TokenRecords as TokenRecords
    from dew.data.tokens.source import TokenBytes as TokenBytes
    from dew.data.tokens.source import TokenSource as TokenSource
    from dew.data.tokens.source import Windows as Windows
    from dew.data.tokens.store import CorpusWriter as CorpusWriter
