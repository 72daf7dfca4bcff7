"""What dew-jepa adds: the encoder, its predictor, the objective and recipe, probes, embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
CONFIG = "dew.objectives.jepa.config:JepaRunConfig"
EXAMPLES = "dew-jepa[examples]"

METRICS = {
    "linear_probe": ("LinearProbe", "Accuracy of a ridge classifier on the features."),
    "knn_probe": ("KnnProbe", "Accuracy of the vote of the nearest training images."),
    "feature_std": ("FeatureDeviation", "How much a feature differs between images; 0 is collapse."),
    "feature_covariance": ("FeatureCovariance", "How much different features repeat each other."),
    "rankme": ("RankMe", "Effective rank of the features."),
}


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-jepa."""
    yield Component(
        "recipe",
        "jepa",
        "dew.objectives.jepa.recipe:train",
        "Train an image encoder without labels: predict hidden parts from the rest.",
        config=CONFIG,
        requires=EXAMPLES,
    )
    yield Component(
        "objective",
        "jepa",
        "dew.objectives.jepa:JepaObjective",
        "Joint-embedding prediction of hidden image blocks.",
        config=CONFIG,
    )
    yield Component(
        "model", "vit_jepa", "dew.nn.backbones.jepa:JepaEncoder", "Vision transformer over patches."
    )
    yield Component(
        "model",
        "vit_jepa_predictor",
        "dew.nn.backbones.jepa:JepaPredictor",
        "Narrow transformer from context features to hidden ones.",
    )
    for name, (attribute, summary) in METRICS.items():
        yield Component("metric", name, f"dew.objectives.jepa:{attribute}", summary)
    yield Component(
        "task",
        "jepa",
        "dew.inference.embeddings:ImageEmbedding",
        "Turn images into feature vectors.",
        config="dew.inference.embeddings.options:EmbeddingOptions",
    )
