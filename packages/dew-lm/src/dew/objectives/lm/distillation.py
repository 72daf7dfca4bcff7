"""Knowledge distillation between two token objectives (arXiv 1503.02531, section 2).

Dimensions: B rows, S targets a row, V vocabulary, D model width. With the student's target weights w, its
loss l of each target, temperature T, and student and teacher distributions `s = softmax(z_s / T)`,
`t = softmax(z_t / T)`:

    loss = sum w ((1 - alpha) l + alpha T^2 KL(t || s) + features mean_d (h_s - h_t)^2) / sum w

T^2 keeps the divergence's gradients at the scale of the cross entropy's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts
from dew.objectives.base import Aux, Batch, Mean, Objective, Prediction, Step, Variables, mean_loss

if TYPE_CHECKING:
    from dew.nn.stack import DecoderBank
    from dew.objectives.base import Task
    from dew.training.config import MeshSpec
    from dew.training.state import TrainState

TEACHER = "teacher"
"""The collection the teacher's variables are held in, beside the student's own."""


@dataclass(frozen=True, kw_only=True)
class FeatureMatch:
    """Which layers are compared, in pairs.

    Attributes:
        student: layers of the student, by index.
        teacher: as many layers of the teacher.
        weight: of the mean squared difference, averaged over the pairs.

    Raises:
        ValueError: unequal counts, none at all, or a weight that is not positive.
    """

    student: tuple[int, ...]
    teacher: tuple[int, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.student or len(self.student) != len(self.teacher):
            raise ValueError(
                f"features compare student={self.student!r} with teacher={self.teacher!r}; "
                "name as many layers of each, at least one"
            )
        if self.weight <= 0:
            raise ValueError(f"features weight={self.weight} must be above 0; leave features out for none")


class Distillation(Objective[Any, Any]):
    """Train a student on a batch's targets and on what a frozen teacher says about them.

    Both are objectives with a `predict` over one vocabulary. The teacher's variables ride in the state under
    `TEACHER`: placed, checkpointed and resumed with the run, and moved by nothing. Everything else (inputs,
    average, evaluation, previews, the task a run publishes) is the student's.

    Args:
        student: what is trained.
        teacher: holds its variables (`held_variables`), as `LMObjective(pretrained=...)` does.
        alpha: share of the divergence, in [0, 1]; the rest is the student's own loss.
        temperature: softens both distributions.
        features: layers whose states are compared as well; None compares none.

    Raises:
        ValueError: a teacher without variables, `alpha` outside [0, 1], or a temperature that is not
            positive.

    Example:
        >>> teacher = LMObjective(large, 128, pretrained=variables)
        >>> objective = Distillation(LMObjective(small, 128), teacher, alpha=0.5, temperature=2.0)
    """

    def __init__(
        self,
        student: Objective[Any, Any],
        teacher: Objective[Any, Any],
        *,
        alpha: float = 0.5,
        temperature: float = 1.0,
        features: FeatureMatch | None = None,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha} must lie in [0, 1]: the divergence's share of the loss")
        if temperature <= 0:
            raise ValueError(f"temperature={temperature} must be above 0: it divides the logits")
        if teacher.held_variables() is None:
            raise ValueError(
                "the teacher holds no variables, so it would teach its random start; "
                "build it with pretrained=..."
            )
        self.student = student
        self.teacher = teacher
        self.alpha = alpha
        self.temperature = temperature
        self.features = features
        self.artifact = student.artifact
        self.unit = student.unit
        self.ema = student.ema
        self.inputs = student.inputs

    @property
    def reports_logits(self) -> bool:
        """Whether the student reports its attention logits."""
        return self.student.reports_logits

    @property
    def bank_sites(self) -> tuple[DecoderBank, ...]:
        """The student's layer stacks; none where features are compared, which needs every layer by name."""
        return () if self.features is not None else self.student.bank_sites

    def held_variables(self) -> Variables | None:
        """The teacher's variables, and the student's where it starts from some."""
        held = {TEACHER: self.teacher.held_variables()}
        own = self.student.held_variables()
        return held if own is None else {**own, **held}

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """The student's variables and, under `TEACHER`, the teacher's."""
        held = self.held_variables() if variables is None else variables
        assert held is not None, "a teacher holds variables"
        own = students(held)
        drawn = self.student.init(key, own or None)
        return {**drawn, TEACHER: self.teacher.init(key, held[TEACHER])}

    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Mean, Aux[Any]]:
        """The mixed loss over the student's targets; `divergence` and `student_loss` are metrics.

        Raises:
            ValueError: vocabularies, rows or layer widths that differ.
        """
        student_layers, teacher_layers = self._layers
        stats, aux, said = self.student.predict(
            students(params), batch, _own(step), train=True, layers=student_layers
        )
        held = jax.lax.stop_gradient(params[TEACHER])
        _, _, taught = self.teacher.predict(
            held, batch, replace(step, ema=None), train=False, layers=teacher_layers
        )
        self._check(said, taught)
        divergence = _weighted(said.weights, _divergence(said.logits, taught.logits, self.temperature))
        total = (1 - self.alpha) * stats.total + self.alpha * self.temperature**2 * divergence
        metrics = {**aux.metrics, **_ratios(stats.mass, student_loss=stats.total, divergence=divergence)}
        if self.features is not None:
            distance = sum(
                _weighted(said.weights, jnp.mean(jnp.square(_wide(one) - _wide(other)), axis=-1))
                for one, other in zip(said.hidden, taught.hidden, strict=True)
            ) / len(said.hidden)
            total = total + self.features.weight * distance
            metrics |= _ratios(stats.mass, feature_distance=distance)
        return Mean(total, stats.mass), replace(aux, metrics=metrics)

    def apply_effects(self, variables: Variables, effects: Any) -> Variables:
        """The student's replacements."""
        return self.student.apply_effects(students(variables), effects)

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Artifacts | None:
        """The student's scores."""
        return self.student.evaluate(students(params), batch, _own(step))

    def preview(
        self, params: Variables, batch: Batch, step: Step, *, scored: Artifacts | None = None
    ) -> Artifacts | None:
        """The student's preview."""
        return self.student.preview(students(params), batch, _own(step), scored=scored)

    def pipeline(self, state: TrainState, *, ema: bool = True) -> Task:
        """The student as its task."""
        own = replace(
            state, params=students(state.params), ema=None if state.ema is None else students(state.ema)
        )
        return self.student.pipeline(own, ema=ema)

    @property
    def batch_fields(self) -> tuple[str, ...]:
        """The student's."""
        return self.student.batch_fields

    def count_units(self, batch: Batch) -> int:
        """The student's count."""
        return self.student.count_units(batch)

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse what either model refuses."""
        self.student.check_mesh(mesh)
        self.teacher.check_mesh(mesh)

    @property
    def _layers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return ((), ()) if self.features is None else (self.features.student, self.features.teacher)

    def _check(self, said: Prediction, taught: Prediction) -> None:
        if said.logits.shape != taught.logits.shape:
            raise ValueError(
                f"the student's logits are {said.logits.shape} and the teacher's {taught.logits.shape}; "
                "both need one vocabulary and one seq_len"
            )
        for one, other in zip(said.hidden, taught.hidden, strict=True):
            if one.shape != other.shape:
                raise ValueError(
                    f"features compare states of width {one.shape[-1]} with {other.shape[-1]}; "
                    "choose models of one width, or leave features out"
                )


def students(variables: Variables) -> Mapping[str, Any]:
    """The student's part of a distillation's variables."""
    return {name: tree for name, tree in variables.items() if name != TEACHER}


def _wide(states: jax.Array) -> jax.Array:
    return states.astype(jnp.promote_types(states.dtype, jnp.float32))


def _divergence(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """[B, S] `KL(teacher || student)` of the softened distributions, nats."""
    known = jax.nn.log_softmax(teacher / temperature)
    learned = jax.nn.log_softmax(student / temperature)
    return jnp.sum(jnp.exp(known) * (known - learned), axis=-1)


def _weighted(weights: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.sum(weights * values)


def _ratios(mass: jax.Array | float, **totals: jax.Array | float) -> dict[str, jax.Array]:
    return {name: mean_loss(Mean(total, mass))[0] for name, total in totals.items()}


def _own(step: Step) -> Step:
    """The step as the student is told it."""
    return replace(step, ema=None if step.ema is None else students(step.ema))
