"""Images in, feature vectors out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.inference.embeddings.options import EmbeddingOptions as EmbeddingOptions
    from dew.inference.embeddings.task import Embeddings as Embeddings
    from dew.inference.embeddings.task import ImageEmbedding as ImageEmbedding

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EmbeddingOptions": "dew.inference.embeddings.options:dew-jepa",
        "Embeddings": "dew.inference.embeddings.task:dew-jepa",
        "ImageEmbedding": "dew.inference.embeddings.task:dew-jepa",
    },
)
