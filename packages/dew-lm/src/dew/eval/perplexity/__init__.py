"""How well a language model predicts a corpus."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CorpusPerplexity": "dew.eval.perplexity.score:dew-lm",
        "corpus_perplexity": "dew.eval.perplexity.score:dew-lm",
        "text_perplexity": "dew.eval.perplexity.text:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.eval.perplexity.score import CorpusPerplexity as CorpusPerplexity
    from dew.eval.perplexity.score import corpus_perplexity as corpus_perplexity
    from dew.eval.perplexity.text import text_perplexity as text_perplexity
