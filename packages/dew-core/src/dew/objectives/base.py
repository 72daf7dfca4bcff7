"""What the Trainer optimizes: the `Objective` contract and the values that cross it.

An objective owns what is learned (the parameter tree, the loss, what its evaluation yields). The Trainer owns
how (mesh, compiled step, accumulation, averages, checkpoints). Losses are *additive statistics*: a window of
microbatches, a mesh and a validation pass all add `(total, mass)` and divide once, so no denominator is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.tree_util import Partial
from typing_extensions import TypeVar

from dew.artifacts import Artifacts
from dew.failure import NothingCounted
from dew.objectives.trees import FROZEN as FROZEN
from dew.objectives.trees import Path as Path
from dew.objectives.trees import PathFilter as PathFilter
from dew.objectives.trees import Variables as Variables
from dew.objectives.trees import everything as everything
from dew.objectives.trees import freeze as freeze
from dew.objectives.trees import merge as merge
from dew.objectives.trees import select as select
from dew.objectives.trees import thaw as thaw
from dew.objectives.trees import under as under

if TYPE_CHECKING:
    from dew.inputs.spec import InputSpec
    from dew.nn.stack import DecoderBank
    from dew.telemetry.cost import StepCost
    from dew.training.config import MeshSpec
    from dew.training.state import TrainState

type Batch = Mapping[str, Any]
"""One batch as the Trainer and every objective read it: arrays with a leading batch axis, by field name.

Leaves are not narrowed to arrays: a batch may carry prepared model inputs, counts or records beside them.
"""

type Initializer = Partial
"""`Objective.init` as a pytree: bound arrays are children, which a jit takes as arguments, not constants."""


@struct.dataclass
class Mean:
    """A sum and the mass it is divided by.

    Attributes:
        total: scalar numerator, differentiable.
        mass: scalar denominator, nonnegative and free of the parameters. Zero mass requires a zero total and
            contributes nothing.
    """

    total: jax.Array | float
    mass: jax.Array | float


def mean_loss(stats: Mean) -> tuple[jax.Array, jax.Array]:
    """Return `(total / mass, mass > 0)`, with value and gradient exactly zero where the mass is zero."""
    total = jnp.asarray(stats.total)
    mass = jnp.asarray(stats.mass)
    active = mass > 0
    # The inner `where` keeps 0/0 out of the backward pass too: a NaN there survives the outer selection.
    value = jnp.where(active, total, 0) / jnp.where(active, mass, 1)
    return value, active


Loss = TypeVar("Loss", default=Mean | jax.Array | float)
"""The additive statistics that `loss` returns: a `Mean`, a unit-mass scalar, or a Flax pytree of its own."""

Effects = TypeVar("Effects", default=None)
"""Additive observations an objective applies once per optimizer commit."""


@struct.dataclass(kw_only=True)
class Step:
    """What the Trainer tells an objective about the current step.

    Attributes:
        step: count of accepted microbatches, which an objective's own schedules read.
        key: typed PRNG key of this attempt; a replayed microbatch gets the key it was first run with.
        ema: the complete variables with the averaged leaves over the live ones, or None without an average.
    """

    step: jax.Array | int
    key: jax.Array
    ema: Variables | None = None


@struct.dataclass
class Aux(Generic[Effects]):
    """What a loss returns beside its statistics.

    Attributes:
        metrics: scalars for the trackers.
        variables: complete replacements of nonparameter collections from one accepted microbatch (batch
            statistics). Never `params`: those belong to the optimizer.
        qk_stats: the `qk` collection the attention layers sowed, for QK-Clip: by module path, `max_logits` as
            a one-tuple of float32 [rows, heads], the largest logit of each head in each row, and of latent
            attention also `qk_nope`, a scalar: the width of a head that does not turn. None where the loss
            did not open the collection. The largest over a committed window counts.
        effects: additive observations, applied once on a committed update.
    """

    metrics: Mapping[str, jax.Array] = struct.field(default_factory=dict)
    variables: Variables | None = None
    qk_stats: Variables | None = None
    effects: Effects | None = None


@struct.dataclass(kw_only=True)
class Prediction:
    """What a token objective scored a batch with, for a teacher to compare.

    Attributes:
        logits: `[B, S, vocab]` float32.
        losses: `[B, S]` the per-position loss the objective sums.
        weights: `[B, S]` the weight of each position.
        hidden: `[B, S, D]` states of the requested layers, in the order asked.
    """

    logits: jax.Array
    losses: jax.Array
    weights: jax.Array
    hidden: tuple[jax.Array, ...] = ()


@dataclass(frozen=True)
class EMASpec:
    """Which leaves the average tracks, and how fast it follows them.

    `ema <- decay(n) * ema + (1 - decay(n)) * params`, where n counts the optimizer updates completed before
    this one (the first is 0). A decay of exactly 1 keeps the old leaf bit for bit.

    Attributes:
        decay: schedule from completed updates to a scalar in [0, 1].
        select: the leaves that are averaged, by full path.
    """

    decay: optax.Schedule
    select: PathFilter = everything


@runtime_checkable
class Task(Protocol):
    """A trained model bound to weights and ready to be called."""

    @property
    def variables(self) -> Variables: ...

    def bind(self, variables: Variables) -> Self:
        """Return this task over other weights; compiled executables are kept."""
        ...

    def __call__(self, request: Any, *args: Any, **options: Any) -> Any: ...


class Objective(ABC, Generic[Loss, Effects]):
    """What is learned: the parameters, the loss, and what evaluation yields.

    A subclass implements `init` and `loss`; every other member has a default. `dew.testing` holds the
    contract tests an objective must pass.
    """

    artifact: type | None = None
    """The artifact type `evaluate` returns, or None when it returns nothing."""

    unit: str = "examples"
    """What a training rate counts: `tokens`, `images`, ..."""

    ema: EMASpec | None = None
    """The moving average the Trainer keeps, or None."""

    inputs: InputSpec
    """Per-example shapes and dtypes the parameter tree is initialised from."""

    @property
    def batch_fields(self) -> tuple[str, ...]:
        """The fields that every batch of the data must have; data without one is refused before the run.

        The default names the sample of `inputs`.
        """
        spec: InputSpec | None = getattr(self, "inputs", None)
        return () if spec is None else (spec.sample.key,)

    @property
    def reports_logits(self) -> bool:
        """Whether `loss` returns `Aux.qk_stats`, which the muonclip optimizer needs."""
        return False

    @property
    def bank_sites(self) -> tuple[DecoderBank, ...]:
        """The layer stacks this objective scans or pipelines; none unless a model declares them.

        A mesh with stages takes only objectives that name some. Their models pass these layers over the
        stages (`dew.nn.pipeline`).
        """
        return ()

    @property
    def initializer(self) -> Initializer:
        """`init` with the held arrays bound as pytree children, so a jit takes them as arguments.

        A closure over a checkpoint would be compiled into the executable as constants; this crosses as data.
        Call it with a key.
        """
        return Partial(_initialize, Partial(self.init), self.held_variables())

    def held_variables(self) -> Variables | None:
        """The arrays this objective starts from (a checkpoint, a frozen tower); None when it draws all."""
        return None

    @abstractmethod
    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """The whole variables tree, every collection, from one key. Pure.

        Args:
            key: typed PRNG key.
            variables: the held tree as data; None means this objective's own `held_variables()`.
        """

    @abstractmethod
    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Loss, Aux[Effects]]:
        """Additive loss statistics of one batch, and the reports beside them.

        Args:
            params: the complete variables tree.
            batch: arrays with a leading batch axis.
            step: clock, randomness and average.

        Returns:
            `Mean(total, mass)` for a shared denominator, a scalar for one unit-mass term, or a Flax pytree of
            the objective's own, whose leaves add across records before `reduce_loss`.
        """

    def reduce_loss(self, stats: Loss) -> tuple[jax.Array, jax.Array]:
        """The loss value and whether its statistics have support. Override for composite statistics."""
        if isinstance(stats, Mean):
            return mean_loss(stats)
        if isinstance(stats, (jax.Array, float, int)):
            return jnp.asarray(stats), jnp.asarray(True)
        raise TypeError(
            f"{type(self).__name__}.loss returns {type(stats).__name__}; "
            "statistics other than Mean and a scalar need a reduce_loss of their own"
        )

    @property
    def reduces_means_to_ratios(self) -> bool:
        """Whether `reduce_loss` of a `Mean` is its ratio, so that the gradients of a window's totals add.

        True where `reduce_loss` is not overridden. An override that leaves `Mean` as it is may say so, which
        spares a window of means from being replayed.
        """
        return type(self).reduce_loss is Objective.reduce_loss

    def apply_effects(self, variables: Variables, effects: Effects) -> Variables:
        """Nonparameter replacements from the observations summed over one committed window."""
        raise TypeError(f"{type(self).__name__} emits effects but does not define apply_effects")

    def predict(
        self, params: Variables, batch: Batch, step: Step, *, train: bool, layers: Sequence[int] = ()
    ) -> tuple[Mean, Aux[Effects], Prediction]:
        """The loss as `loss` computes it, with the token logits, weights and layer outputs behind it."""
        raise TypeError(f"{type(self).__name__} scores no token logits, so it has no predict")

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Artifacts | None:
        """Scoring artifacts for every row of the global batch. Every process takes part; no decoding."""
        return None

    def pipeline(self, state: TrainState, *, ema: bool = True) -> Task:
        """The trained model as its inference task, over the averaged weights unless `ema` is False."""
        raise TypeError(f"{type(self).__name__} has no inference task")

    def preview(
        self, params: Variables, batch: Batch, step: Step, *, scored: Artifacts | None = None
    ) -> Artifacts | None:
        """One display per evaluation event; the default shows the first scoring artifacts again."""
        return scored

    def count_units(self, batch: Batch) -> int:
        """How many `unit`s a host batch holds; the default counts its rows."""
        return int(jax.tree.leaves(batch)[0].shape[0])

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse a mesh on which this objective would compute something else, before any work; none here.

        Raises:
            ValueError: naming the factor, what does not fit it and what works.
        """
        return None

    def step_cost(self, batch: Batch) -> StepCost | None:
        """The model FLOPs of one training step on a global batch of these shapes; values are not read.

        A family that knows its formula overrides it. None means not known, and then no MFU is reported.
        """
        return None


def _initialize(init: Partial, held: Variables | None, key: jax.Array) -> Variables:
    return init(key, held)


def scalar_loss(
    objective: Objective[Loss, Effects], variables: Variables, batch: Batch, step: Step
) -> tuple[jax.Array, Aux[Effects]]:
    """Evaluate and reduce the statistics, for direct differentiation with `jax.grad(..., has_aux=True)`."""
    stats, aux = objective.loss(variables, batch, step)
    value, _ = objective.reduce_loss(stats)
    return value, aux


S = TypeVar("S")
"""The statistic a metric accumulates over a pass."""


class Metric(Protocol[S]):
    """Reduces a validation pass to one scalar, on the host.

    The first contribution starts a pass. `merge` may update the accumulator in place; nothing is kept between
    passes, and a metric takes part in no collective.
    """

    @property
    def name(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def reads(self) -> type:
        """The artifact type this metric scores."""
        ...

    def __call__(self, artifact: Any, /) -> S:
        """The statistic of one artifact."""
        ...

    def merge(self, accumulated: S, contribution: S, /) -> S: ...

    def finalize(self, accumulated: S, /) -> float: ...


def merge_totals(accumulated: tuple[float, float], contribution: tuple[float, float]) -> tuple[float, float]:
    """Add one batch's `(total, count)`; batches of different sizes then weigh by their counts."""
    return accumulated[0] + contribution[0], accumulated[1] + contribution[1]


def mean_of_totals(accumulated: tuple[float, float]) -> float:
    """Divide a summed total by its summed count.

    Raises:
        NothingCounted: the pass counted nothing, so it has no mean.
    """
    total, count = accumulated
    if count <= 0:
        raise NothingCounted(
            f"the pass counted {count:g} targets, and a mean needs at least one; see which targets the "
            "objective counts (a role, a mask, padding) and whether the validation data holds them"
        )
    return total / count
