"""Joint-embedding prediction: masks, the objective, collapse meters, probes and the run configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.objectives.jepa.collapse import CollapseWarning as CollapseWarning
    from dew.objectives.jepa.collapse import FeatureCovariance as FeatureCovariance
    from dew.objectives.jepa.collapse import FeatureDeviation as FeatureDeviation
    from dew.objectives.jepa.collapse import RankMe as RankMe
    from dew.objectives.jepa.config import JepaRunConfig as JepaRunConfig
    from dew.objectives.jepa.knn import KnnProbe as KnnProbe
    from dew.objectives.jepa.mask_config import MultiBlock as MultiBlock
    from dew.objectives.jepa.masks import Masks as Masks
    from dew.objectives.jepa.masks import MultiBlockMask as MultiBlockMask
    from dew.objectives.jepa.objective import JepaObjective as JepaObjective
    from dew.objectives.jepa.representation import Representation as Representation
    from dew.objectives.jepa.ridge import LinearProbe as LinearProbe

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CollapseWarning": "dew.objectives.jepa.collapse:dew-jepa",
        "FeatureCovariance": "dew.objectives.jepa.collapse:dew-jepa",
        "FeatureDeviation": "dew.objectives.jepa.collapse:dew-jepa",
        "JepaObjective": "dew.objectives.jepa.objective:dew-jepa",
        "JepaRunConfig": "dew.objectives.jepa.config:dew-jepa",
        "KnnProbe": "dew.objectives.jepa.knn:dew-jepa",
        "LinearProbe": "dew.objectives.jepa.ridge:dew-jepa",
        "Masks": "dew.objectives.jepa.masks:dew-jepa",
        "MultiBlock": "dew.objectives.jepa.mask_config:dew-jepa",
        "MultiBlockMask": "dew.objectives.jepa.masks:dew-jepa",
        "RankMe": "dew.objectives.jepa.collapse:dew-jepa",
        "Representation": "dew.objectives.jepa.representation:dew-jepa",
    },
)
