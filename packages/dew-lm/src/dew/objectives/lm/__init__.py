"""Language modeling: next-token training, teacher-forced scoring and the run configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.objectives.lm.batch import TEXT_KEY as TEXT_KEY
    from dew.objectives.lm.config import IndexerTraining as IndexerTraining
    from dew.objectives.lm.config import LMRunConfig as LMRunConfig
    from dew.objectives.lm.distillation import Distillation as Distillation
    from dew.objectives.lm.distillation import FeatureMatch as FeatureMatch
    from dew.objectives.lm.metrics import Perplexity as Perplexity
    from dew.objectives.lm.metrics import perplexity as perplexity
    from dew.objectives.lm.objective import LMObjective as LMObjective
    from dew.objectives.lm.routing import LMStatistics as LMStatistics
    from dew.objectives.lm.samples import Samples as Samples
    from dew.objectives.lm.samples import prompt_batch as prompt_batch
    from dew.objectives.lm.scores import Scores as Scores

__getattr__, __dir__ = lazy(
    __name__,
    {
        "TEXT_KEY": "dew.objectives.lm.batch:dew-lm",
        "Distillation": "dew.objectives.lm.distillation:dew-lm",
        "FeatureMatch": "dew.objectives.lm.distillation:dew-lm",
        "IndexerTraining": "dew.objectives.lm.config:dew-lm",
        "LMRunConfig": "dew.objectives.lm.config:dew-lm",
        "LMObjective": "dew.objectives.lm.objective:dew-lm",
        "LMStatistics": "dew.objectives.lm.routing:dew-lm",
        "Perplexity": "dew.objectives.lm.metrics:dew-lm",
        "Samples": "dew.objectives.lm.samples:dew-lm",
        "Scores": "dew.objectives.lm.scores:dew-lm",
        "perplexity": "dew.objectives.lm.metrics:dew-lm",
        "prompt_batch": "dew.objectives.lm.samples:dew-lm",
    },
)
