__path__ = __import__("pkgutil").extend_path(__path__, __name__)
from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CorpusPerplexity": "dew.eval.perplexity:dew-lm",
        "corpus_perplexity": "dew.eval.perplexity:dew-lm",
        "text_perplexity": "dew.eval.perplexity:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.eval.perplexity import CorpusPerplexity as CorpusPerplexity
    from dew.eval.perplexity import corpus_perplexity as corpus_perplexity
    from dew.eval.perplexity import text_perplexity as text_perplexity
