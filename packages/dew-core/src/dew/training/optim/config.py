"""Learning-rate schedules and parameter groups as plain records.

Every schedule reads `n`, the count of completed optimizer updates (0 for the first), and scales the run's
learning rate `peak`: with a warmup of W updates it rises as `peak * n / W`, and what follows is the record's
own law, over the `T` updates of the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class ScheduleSpec(ABC):
    """A learning-rate schedule as a configuration names it. Subclasses add their fields and implement
    `build`."""

    component_kind: ClassVar[str] = "schedule"

    @abstractmethod
    def build(self, *, peak: float, total_updates: int) -> optax.Schedule:
        """The rate as a function of completed updates.

        Args:
            peak: `optim.learning_rate`, the highest rate.
            total_updates: length of the run in optimizer updates.

        Raises:
            ValueError: the phases need more updates than the run has.
        """


@dataclass(frozen=True)
class Cosine(ScheduleSpec):
    """Warm up, then fall along half a cosine.

    After the warmup, with `x = (n - W) / (T - W)`: `peak * (end + (1 - end) * (1 + cos(pi x)) / 2)`.

    Attributes:
        warmup_updates: W.
        end_factor: `end`, the last rate as a fraction of the peak.
    """

    warmup_updates: int = 0
    end_factor: float = 0.0

    def __post_init__(self) -> None:
        at_least_zero("warmup_updates", self.warmup_updates)
        fraction("end_factor", self.end_factor)

    def build(self, *, peak: float, total_updates: int) -> optax.Schedule:
        from dew.training.optim.schedules import cosine

        return cosine(self, peak, total_updates)


@dataclass(frozen=True)
class Linear(ScheduleSpec):
    """Warm up, then fall along a line.

    After the warmup, with `x = (n - W) / (T - W)`: `peak * (1 - (1 - end) * x)`.

    Attributes:
        warmup_updates: W.
        end_factor: `end`, the last rate as a fraction of the peak.
    """

    warmup_updates: int = 0
    end_factor: float = 0.0

    def __post_init__(self) -> None:
        at_least_zero("warmup_updates", self.warmup_updates)
        fraction("end_factor", self.end_factor)

    def build(self, *, peak: float, total_updates: int) -> optax.Schedule:
        from dew.training.optim.schedules import linear

        return linear(self, peak, total_updates)


@dataclass(frozen=True)
class Power(ScheduleSpec):
    """Warm up, follow a power law of the records seen, and end in an optional linear tail (arXiv 2408.13359).

    After the warmup `power(n) = min(peak, scale * (n * per_update) ** exponent)`: the law does not know the
    length of the run, so a run can go on. Over the last D updates the rate falls in a line from the law's
    value at `T - D` to `end` of it.

    Attributes:
        scale: `a` of the law. The paper's 4 multiplies the batch size in sequences.
        exponent: `b` of the law, negative.
        per_update: tokens (or whatever the law counts) of one optimizer update.
        warmup_updates: W.
        tail_updates: D; 0 keeps to the law until the end.
        end_factor: `end`, the last rate as a fraction of the rate the tail begins at.
    """

    scale: float
    per_update: float = 1.0
    exponent: float = -0.51
    warmup_updates: int = 0
    tail_updates: int = 0
    end_factor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "per_update"):
            if not getattr(self, name) > 0:
                raise ValueError(f"schedule.{name}={getattr(self, name)} must be above 0")
        if not self.exponent < 0:
            raise ValueError(f"schedule.exponent={self.exponent} must be below 0, as in -0.51")
        at_least_zero("warmup_updates", self.warmup_updates)
        at_least_zero("tail_updates", self.tail_updates)
        fraction("end_factor", self.end_factor)

    def build(self, *, peak: float, total_updates: int) -> optax.Schedule:
        from dew.training.optim.schedules import power

        return power(self, peak, total_updates)


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that learn at a rate or with a weight decay of their own. The first group that matches wins.

    Attributes:
        pattern: a glob over full parameter paths, `params/embed_tokens/*`; `*` crosses `/`.
        lr_multiplier: factor on the learning rate; 0 holds the parameters still.
        weight_decay: instead of `optim.weight_decay`; None keeps the run's.

    Raises:
        ValueError: an empty pattern, or a negative number.
    """

    pattern: str
    lr_multiplier: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ValueError("param_groups.pattern='' must be a glob over paths, as in params/embed_tokens/*")
        if not self.lr_multiplier >= 0:
            raise ValueError(f"param_groups.lr_multiplier={self.lr_multiplier} must be 0 or more")
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise ValueError(f"param_groups.weight_decay={self.weight_decay} must be 0 or more")


HIDDEN = ("*/self_attn/*/kernel", "*/mlp/*/kernel")
"""The hidden matrices of a transformer: attention's projections, feed-forward blocks and routers."""

EXPERTS = "*/mlp/experts_*"
"""The stacked matrices of a mixture of experts."""


def mup_param_groups(width_multiplier: float, patterns: tuple[str, ...] = HIDDEN) -> tuple[ParamGroup, ...]:
    """The groups of the maximal update parametrization for Adam (arXiv 2203.03466, table 8).

    Hidden matrices learn at `1 / width_multiplier` of the rate; embeddings, norms, biases and the head at
    the rate. Initial scales and the logits' multiplier are the model's part of the parametrization.

    Args:
        width_multiplier: the model's width over the width the rate was tuned at.
        patterns: globs of the hidden matrices; `(*HIDDEN, EXPERTS)` for a mixture of experts. Each must match
            a parameter.

    Raises:
        ValueError: a multiplier that is not positive.
    """
    if not width_multiplier > 0:
        raise ValueError(f"width_multiplier={width_multiplier} must be above 0")
    return tuple(ParamGroup(pattern, lr_multiplier=1 / width_multiplier) for pattern in patterns)


def at_least_zero(name: str, value: int) -> None:
    """Refuse a negative count of updates."""
    if value < 0:
        raise ValueError(f"schedule.{name}={value} must be 0 or more updates")


def fraction(name: str, value: float) -> None:
    """Refuse a factor outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"schedule.{name}={value} must be in [0, 1]")
