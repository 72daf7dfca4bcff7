"""What every metric keeps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from dew.objectives.base import Metric


class MetricContract(ABC):
    """Implement `metric`, `artifacts` and `expected`; value, merging and order are then tested."""

    tolerance = 1e-6

    @abstractmethod
    def metric(self) -> Metric[Any]:
        """The metric under test."""

    @abstractmethod
    def artifacts(self) -> list[Any]:
        """The artifacts of one pass, three or more, of different sizes."""

    @abstractmethod
    def expected(self) -> float:
        """The value of the whole pass, computed by hand or by another library."""

    def value(self, order: list[Any]) -> float:
        """What the metric makes of a pass over `order`."""
        metric = self.metric()
        accumulated = metric(order[0])
        for artifact in order[1:]:
            accumulated = metric.merge(accumulated, metric(artifact))
        return metric.finalize(accumulated)

    def test_value_of_a_pass_is_the_expected_one(self) -> None:
        assert math.isclose(self.value(self.artifacts()), self.expected(), rel_tol=self.tolerance)

    def test_order_of_the_batches_does_not_matter(self) -> None:
        backwards = self.value(self.artifacts()[::-1])
        assert math.isclose(backwards, self.expected(), rel_tol=self.tolerance)

    def test_artifacts_are_of_the_type_it_reads(self) -> None:
        assert all(isinstance(artifact, self.metric().reads) for artifact in self.artifacts())

    def test_it_says_its_name_and_direction(self) -> None:
        metric = self.metric()
        assert metric.name and isinstance(metric.higher_is_better, bool)
